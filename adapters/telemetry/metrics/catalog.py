"""Every metric, in one table: its names in OpenTelemetry and Prometheus, its unit, its labels, where it comes from.

OpenTelemetry names are made into Prometheus names by the exporter: dots become underscores, a unit becomes a suffix,
a counter ends in ``_total``. Units in braces are annotations and leave no suffix, on any way from here to Prometheus;
that is why gauges of 0 to 1 have none (a collector would make ``_ratio`` of the unit ``1``). A gauge and a counter of
one thing need two names: the counter of seconds has ``seconds`` in its name, which no exporter doubles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ....events.types import LOOP_LAG_BOUNDS_S

Kind = Literal["counter", "gauge", "histogram"]


def _doubling(first: float, last: float) -> tuple[float, ...]:
    bounds = [first]
    while bounds[-1] * 2 < last:
        bounds.append(bounds[-1] * 2)
    return (*(round(bound, 6) for bound in bounds), last)


CALL_BOUNDS_S = _doubling(0.05, 300.0)
ENVIRONMENT_BOUNDS_S = (
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0,
)  # fmt: skip
"""Of what environments take part in, and of the wait in the buffer: from a tenth of a second to two hours."""
SYNC_BOUNDS_S = _doubling(0.05, 120.0)
STALENESS_BOUNDS = tuple(float(lag) for lag in range(17))

RUN = ("run_started", "run_resumed", "run_finished", "run_failed")
CALLS = ("llm_call_started", "llm_call_finished")
STEPS = ("env_step_started", "env_step_finished")
LANDED = ("group_buffered", "group_filtered", "group_failed", "group_evicted", "group_discarded")
BUFFER = ("group_buffered", "group_restored", "batch_taken", "group_evicted", "group_discarded")
ENGINES = ("engine_up", "engine_paused", "engine_resumed", "engine_lost", "engine_restarted")
SYNCS = ("sync_started", "sync_acknowledged", "sync_failed")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric."""

    prometheus: str
    """Its name as Prometheus sees it."""
    otel: str
    """The name of its OpenTelemetry instrument."""
    kind: Kind
    unit: str
    """As OpenTelemetry writes it: ``s``, ``By``, an annotation in braces, or nothing."""
    labels: tuple[str, ...]
    """Besides `run`, which all have; every series has all of them."""
    description: str
    events: tuple[str, ...]
    """Kinds of events it is made from; empty: all."""
    bounds: tuple[float, ...] = ()
    """Upper bounds of a histogram's buckets."""

    @property
    def family(self) -> str:
        """The name behind ``# TYPE`` in OpenMetrics: that of a counter lacks its ``_total``."""
        return self.prometheus.removesuffix("_total") if self.kind == "counter" else self.prometheus


def _gauge(prometheus: str, otel: str, unit: str, labels: str, says: str, events: tuple[str, ...]) -> Metric:
    return Metric(prometheus, otel, "gauge", unit, tuple(labels.split()), says, events)


def _counter(
    prometheus: str, otel: str, unit: str, labels: str, says: str, events: tuple[str, ...]
) -> Metric:
    return Metric(prometheus, otel, "counter", unit, tuple(labels.split()), says, events)


def _histogram(
    prometheus: str, otel: str, unit: str, labels: str, says: str, events: tuple[str, ...], bounds: tuple[float, ...]
) -> Metric:  # fmt: skip
    return Metric(prometheus, otel, "histogram", unit, tuple(labels.split()), says, events, bounds)


# fmt: off
METRICS: tuple[Metric, ...] = (
    # The run
    _gauge("rl_run_info", "rl.run.info", "", "name model policy algorithm engine code_version",
           "Always 1; its labels say what is run.", ("run_started", "run_resumed")),
    _gauge("rl_run_outcome", "rl.run.outcome", "", "outcome",
           "1 for how the run stands, 0 for all other outcomes.", RUN),
    _gauge("rl_event_last_timestamp_seconds", "rl.event.last_timestamp", "s", "",
           "UTC time of the newest event.", ()),
    _counter("rl_events_total", "rl.events", "{event}", "", "Events in the log.", ()),
    # The trainer
    _gauge("rl_trainer_phase", "rl.trainer.phase", "", "phase",
           "1 for the phase that the trainer is in, 0 for all others.", ("phase_entered", *RUN)),
    _counter("rl_trainer_phase_seconds_total", "rl.trainer.phase.seconds", "s", "phase",
             "Seconds in each phase, the open one included; they sum to the time the run has had.",
             ("phase_entered", *RUN)),
    _counter("rl_steps_total", "rl.steps", "{step}", "",
             "Optimizer steps made, those that were rolled back later included.", ("step_completed",)),
    _gauge("rl_weight_version", "rl.weight.version", "{version}", "",
           "Version of the weights that the learner holds.", ("learner_up", "step_completed", "run_resumed")),
    _gauge("rl_reward_mean", "rl.reward.mean", "", "", "Mean reward of the last step.", ("step_completed",)),
    _gauge("rl_loss", "rl.loss", "", "", "Loss of the last step.", ("step_completed",)),
    _gauge("rl_learner_metric", "rl.learner.metric", "", "metric",
           "What the learner measured in the last step, by name.", ("step_completed",)),
    _gauge("rl_eval_reward_mean", "rl.eval.reward.mean", "", "",
           "Mean reward of the last evaluation.", ("eval_completed",)),
    _counter("rl_tokens_total", "rl.tokens", "{token}", "kind",
             "Tokens of complete training trajectories (prompt, sampled) and of steps (trained, masked).",
             ("trajectory_completed", "step_completed")),
    # Engines
    _gauge("rl_pool_state", "rl.pool.state", "", "pool state",
           "1 for the state that the pool is in, 0 for all others.", (*ENGINES, *SYNCS, *CALLS)),
    _counter("rl_pool_state_seconds_total", "rl.pool.state.seconds", "s", "pool state",
             "Seconds in each state of the pool, the open one included.", (*ENGINES, *SYNCS, *CALLS)),
    _gauge("rl_engines", "rl.engines", "{engine}", "state", "Engines by state.", ENGINES),
    _gauge("rl_engine_weight_version", "rl.engine.weight.version", "{version}", "engine",
           "Version of the weights that the engine samples with.", ("engine_up", "sync_acknowledged")),
    _histogram("rl_weight_sync_duration_seconds", "rl.weight.sync.duration", "s", "",
               "How long an engine took to take new weights.", ("sync_acknowledged",), SYNC_BOUNDS_S),
    _counter("rl_weight_sync_retries_total", "rl.weight.sync.retries", "{update}", "",
             "Updates of an engine that failed and were made again.", ("sync_retried",)),
    _gauge("rl_engine_requests", "rl.engine.requests", "{request}", "engine state",
           "Requests that the engine itself counts, running or in its own queue; of engines that count.",
           ("engine_sampled",)),
    _gauge("rl_engine_kv_cache_usage_ratio", "rl.engine.kv_cache.usage_ratio", "", "engine",
           "Share of the engine's KV cache that is in use; of engines that count.", ("engine_sampled",)),
    _counter("rl_engine_preemptions_total", "rl.engine.preemptions", "{request}", "engine",
             "Requests that the engine put back for want of KV cache; of engines that count.", ("engine_sampled",)),
    _counter("rl_engine_tokens_total", "rl.engine.tokens", "{token}", "engine kind",
             "Tokens of prompts, those of them that were in the prefix cache (cached), and sampled ones; of engines "
             "that count.", ("engine_sampled",)),
    _counter("rl_llm_wall_seconds_total", "rl.llm.wall", "s", "",
             "Seconds in which at least one call was open.", CALLS),
    _counter("rl_llm_call_seconds_total", "rl.llm.call", "s", "",
             "Seconds of all calls together, open ones up to now.", CALLS),
    _counter("rl_llm_calls_total", "rl.llm.calls", "{call}", "outcome", "Calls by how they ended.",
             CALLS),
    _histogram("rl_llm_call_duration_seconds", "rl.llm.call.duration", "s", "",
               "How long a call took, queue included.", CALLS, CALL_BOUNDS_S),
    # Devices
    _counter("rl_gpu_allocated_seconds_total", "rl.gpu.allocated", "s", "pool phase gpu",
             "Seconds for which the device was sampled, by the trainer's phase.", ("device_sampled", "phase_entered")),
    _counter("rl_gpu_busy_seconds_total", "rl.gpu.busy", "s", "pool phase gpu",
             "Seconds of these in which it was busy.", ("device_sampled", "phase_entered")),
    _counter("rl_gpu_sm_active_seconds_total", "rl.gpu.sm.active", "s", "pool phase gpu",
             "Seconds of these in which its multiprocessors had work; only where the chip counts it.",
             ("device_sampled", "phase_entered")),
    _counter("rl_gpu_idle_seconds_total", "rl.gpu.idle", "s", "pool cause",
             "Allocated seconds that were not busy, by why.", ("device_sampled",)),
    _gauge("rl_gpu_utilization", "rl.gpu.utilization", "{ratio}", "pool gpu",
           "Share of its last window in which the device was busy, 0 to 1.", ("device_sampled",)),
    _gauge("rl_gpu_memory_bytes", "rl.gpu.memory", "By", "pool gpu", "Memory in use.", ("device_sampled",)),
    # Rollouts
    _gauge("rl_rollouts_inflight", "rl.rollouts.inflight", "{trajectory}", "stage",
           "Trajectories in flight by where they are, those of evaluations too.",
           ("trajectory_started", "trajectory_completed", "trajectory_failed", "retry_scheduled", *CALLS, *STEPS,
            *LANDED)),
    _gauge("rl_rollout_oldest_start_timestamp_seconds", "rl.rollout.oldest_start_timestamp", "s", "",
           "UTC time at which the oldest trajectory in flight began; absent when there is none.",
           ("trajectory_started", "trajectory_completed", "trajectory_failed")),
    _counter("rl_trajectories_total", "rl.trajectories", "{trajectory}", "outcome",
             "Training trajectories that are complete or given up, and attempts that failed; not cancelled ones.",
             ("trajectory_completed", "trajectory_failed", "trajectory_dropped")),
    _counter("rl_trajectory_component_seconds_total", "rl.trajectory.component", "s", "env component",
             "Where the time of complete training trajectories went; the components sum to it.",
             ("trajectory_completed",)),
    _histogram("rl_trajectory_duration_seconds", "rl.trajectory.duration", "s", "env",
               "How long a complete training trajectory took.", ("trajectory_completed",), ENVIRONMENT_BOUNDS_S),
    _histogram("rl_env_step_duration_seconds", "rl.env.step.duration", "s", "env call",
               "How long the environment took to answer.", STEPS, ENVIRONMENT_BOUNDS_S),
    # Groups and the buffer
    _gauge("rl_collector_state", "rl.collector.state", "", "state",
           "1 for what the collector does or waits for, 0 for all others.",
           ("blocked", "unblocked", "data_exhausted", "prompt_returned", *RUN)),
    _counter("rl_groups_dispatched_total", "rl.groups.dispatched", "{group}", "", "Groups that were started.",
             ("group_dispatched",)),
    _gauge("rl_groups_inflight", "rl.groups.inflight", "{group}", "", "Groups in flight.",
           ("group_dispatched", *LANDED)),
    _counter("rl_groups_total", "rl.groups", "{group}", "disposition",
             "Groups that have left flight, by how; committed: into the buffer.", ("group_dispatched", *LANDED)),
    _counter("rl_buffer_left_total", "rl.buffer.left", "{group}", "reason",
             "Groups that have left the buffer, by why.", ("batch_taken", "group_evicted", "group_discarded")),
    _gauge("rl_buffer_groups", "rl.buffer.groups", "{group}", "", "Groups in the buffer.", BUFFER),
    _gauge("rl_buffer_capacity_groups", "rl.buffer.capacity.groups", "{group}", "",
           "Groups that the buffer holds at most, with those in flight.", ("run_started", "run_resumed")),
    _histogram("rl_buffer_dwell_seconds", "rl.buffer.dwell", "s", "",
               "How long a group that is trained was in the buffer.", BUFFER, ENVIRONMENT_BOUNDS_S),
    _histogram("rl_staleness_versions", "rl.staleness.versions", "{version}", "",
               "Step that takes a group, minus the version at its dispatch.", ("group_dispatched", "batch_taken"),
               STALENESS_BOUNDS),
    # Health
    _counter("rl_prompts_quarantined_total", "rl.prompts.quarantined", "{prompt}", "",
             "Prompts that are never drawn again.", ("prompt_quarantined",)),
    _counter("rl_deadlines_expired_total", "rl.deadlines.expired", "{deadline}", "effect",
             "Effects and waits that took longer than they may.", ("deadline_expired",)),
    _counter("rl_invariants_broken_total", "rl.invariants.broken", "{breach}", "law",
             "Laws of the accounting that do not hold.", ("invariant_broken",)),
    _gauge("rl_stall_verdict", "rl.stall.verdict", "", "class", "1 while a verdict of this class stands.",
           ("stall_detected", "stall_cleared")),
    _counter("rl_stalls_total", "rl.stalls", "{stall}", "class", "Verdicts that were given.", ("stall_detected",)),
    _histogram("rl_event_loop_lag_seconds", "rl.event_loop.lag", "s", "",
               "How late the timers of the controller's event loop were.", ("loop_lag_sampled",), LOOP_LAG_BOUNDS_S),
    _counter("rl_telemetry_dropped_total", "rl.telemetry.dropped", "{item}", "signal reason",
             "Pushes, spans, samples or steps that telemetry has lost.", ("telemetry_dropped",)),
    _gauge("rl_telemetry_degraded", "rl.telemetry.degraded", "", "part",
           "1 when a part of the telemetry works less well than asked.", ("telemetry_degraded",)),
)
# fmt: on
BY_NAME = {metric.prometheus: metric for metric in METRICS}
