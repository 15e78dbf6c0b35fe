"""Every attribute name of our spans, in one table.

The GenAI conventions of OpenTelemetry are still in development: names have moved before and will again. So the schema
they are taken from is pinned here, and said in every export. What they have no word for is ``rl.*``.

Names of spans never carry an id: a viewer groups by them.
"""

from __future__ import annotations

from importlib.metadata import version

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"
"""The release in which ``gen_ai.provider.name`` took the place of ``gen_ai.system``."""
SCOPE = "eventrain.traces"
SCOPE_VERSION = version("eventrain")

# OpenTelemetry's own

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
MODEL = "gen_ai.request.model"
MAX_TOKENS = "gen_ai.request.max_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
TOOL = "gen_ai.tool.name"
AGENT = "gen_ai.agent.name"
CONVERSATION = "gen_ai.conversation.id"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
ERROR_TYPE = "error.type"
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"
HOST = "host.name"
PID = "process.pid"

# Ours

RUN = "rl.run.id"
GROUP = "rl.group.id"
GROUP_OUTCOME = "rl.group.outcome"
TRAJECTORY = "rl.trajectory.id"
ATTEMPT = "rl.rollout.attempt"
EVAL = "rl.eval.id"
ITERATION = "rl.iteration"
"""The step, from 0."""
CONSUMED_BY = "rl.consumed_by.step"
VERSION = "rl.weight_version"
"""At dispatch of a group, or that a step trains from."""
VERSION_START = "rl.weight_version.start"
VERSION_END = "rl.weight_version.end"
VERSION_SPANS = "rl.weight_version.spans"
"""Which version sampled how many tokens, in token order: ``["3:40", "4:12"]``."""
TARGET_VERSION = "rl.target_weight_version"
STALENESS = "rl.staleness"
REWARD = "rl.reward"
STOP_REASON = "rl.stop_reason"
TURN = "rl.turn.index"
TURNS = "rl.turns"
ENGINE = "rl.engine"
SYNC_MODE = "rl.weight_sync.mode"
SYNC_ATTEMPT = "rl.weight_sync.attempt"
TENSORS = "rl.weight_sync.tensors"
DIGEST = "rl.weight_sync.digest"
"""Of the tensors that the engine took."""
QUEUE_S = "rl.llm.queue_seconds"
DELAY_S = "rl.retry.delay_seconds"
DWELL_S = "rl.buffer.dwell_seconds"
OUTCOME = "rl.outcome"
FAILURE = "rl.failure"
BLAME = "rl.failure.blame"
RETRYABLE = "rl.failure.retryable"
SAMPLED = "rl.sampled"
"""False on a link to a trajectory whose trace was not kept."""
TRUNCATED = "rl.span.truncated"
SNAPSHOT = "rl.span.snapshot_seq"
"""Seq at which a copy was made of a tree that was still open; its other spans may come, or not, under other ids."""
BYTES = "rl.bytes"
GROUPS = "rl.groups"
TRAJECTORIES = "rl.trajectories"
TOKENS = "rl.tokens"
MASKED_TOKENS = "rl.tokens.masked"
LOSS = "rl.loss"
REWARD_MEAN = "rl.reward.mean"
STALENESS_MAX = "rl.staleness.max"
AWAITED = "rl.wait.awaited"
PRESENT = "rl.wait.present"

# Names of spans

STEP = "rl.step"
WAIT = "rl.wait_for_buffer"
CONVERT = "rl.convert"
TRAIN = "rl.train"
SYNC = "rl.weight_sync"
SYNC_ENGINE = "rl.weight_sync.engine"
EVALUATE = "rl.eval"
CHECKPOINT = "rl.checkpoint"
QUEUE = "rl.queue"
SETUP = "rl.env.setup"
TURN_SPAN = "rl.turn"
REWARD_SPAN = "rl.reward"
BUFFER = "rl.buffer"
TOOL_NAME = "env.step"
EXECUTE_TOOL = f"execute_tool {TOOL_NAME}"

# Names of events

RETRY_SCHEDULED = "rl.retry_scheduled"
DROPPED = "rl.trajectory_dropped"
SYNC_RETRIED = "rl.weight_sync.retried"
SYNC_VERIFIED = "rl.weight_sync.verified"
