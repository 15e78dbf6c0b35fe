"""The metrics of a told run as OpenMetrics text, counted in the plainest way: the truth that queries are held against.

It knows only what told runs tell: one phase after the other, samples that end where phases end, calls without overlap.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from told_runs import ToldRun

from eventrain.events import types as events
from eventrain.events.identity import run_id

SCRAPE_S = 15.0
PHASES = (
    "starting", "generating", "waiting_for_buffer", "converting", "training", "weight_sync", "eval", "checkpoint",
    "finished",
)  # fmt: skip
STATE_SETS: Mapping[str, tuple[str, Sequence[str]]] = {
    "rl_trainer_phase": ("phase", PHASES),
    "rl_run_outcome": ("outcome", ("running", "completed", "interrupted", "data_exhausted", "failed")),
    "rl_collector_state": (
        "state", ("dispatching", "gated", "out_of_permits", "no_engine", "exhausted", "stopped")
    ),
    "rl_stall_verdict": ("class", ("deadlock", "overdue", "livelock", "degraded", "silent_loss")),
}  # fmt: skip
BOUNDS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6)
CAUSES = {"waiting_for_buffer": "buffer_starvation", "weight_sync": "weight_sync"}

Labels = tuple[tuple[str, str], ...]


def run_of(told: ToldRun) -> str:
    """Return the id of the told run, which is its label."""
    return run_id(told.name, told.start_ts)


def told_openmetrics(told: ToldRun) -> str:
    """Return every sample of the run, each SCRAPE_S seconds of its time, as OpenMetrics text."""
    fold = _Fold(run_of(told))
    lines: dict[str, list[str]] = defaultdict(list)
    records = iter(told.records)
    record = next(records, None)
    at_s, last_s = 0.0, (told.records[-1].ts - told.start_ts) / 1e9
    while at_s <= last_s + SCRAPE_S:
        while record is not None and (record.ts - told.start_ts) / 1e9 <= at_s:
            fold.apply((record.ts - told.start_ts) / 1e9, record.event)
            record = next(records, None)
        for name, labels, value in fold.samples(at_s):
            text = ",".join(f'{key}="{said}"' for key, said in labels)
            lines[name].append(f"{name}{{{text}}} {value!r} {told.start_ts / 1e9 + at_s:.3f}")
        at_s += SCRAPE_S
    return "\n".join(line for name in sorted(lines) for line in lines[name]) + "\n# EOF\n"


class _Fold:
    def __init__(self, run: str) -> None:
        self.run = run
        self.values: dict[tuple[str, Labels], float] = defaultdict(float)
        self.phase, self.phase_since = "starting", 0.0
        self.set(
            "rl_run_info", 1.0, name="told", model="tiny", policy="targeted", algorithm="grpo", engine="e"
        )
        for name, (label, states) in STATE_SETS.items():
            for state in states:
                self.set(name, float(state in {"starting", "running", "dispatching"}), **{label: state})
        for state in ("serving", "draining", "syncing", "idle", "down"):
            self.set("rl_pool_state", float(state == "serving"), pool="engine", state=state)
        self.set("rl_engines", 1.0, state="serving")
        self.set("rl_buffer_capacity_groups", 4.0)

    def set(self, name: str, value: float, /, **labels: str) -> None:
        self.values[name, (("run", self.run), *labels.items())] = value

    def add(self, name: str, value: float = 1.0, /, **labels: str) -> None:
        self.values[name, (("run", self.run), *labels.items())] += value

    def observe(
        self, name: str, value: float, bounds: Sequence[float] = BOUNDS, /, **labels: str
    ) -> None:
        for bound in (*bounds, float("inf")):
            said = "+Inf" if bound == float("inf") else str(float(bound))
            self.add(f"{name}_bucket", float(value <= bound), **labels, le=said)
        self.add(f"{name}_sum", value, **labels)
        self.add(f"{name}_count", **labels)

    def become(self, name: str, state: str) -> None:
        label, states = STATE_SETS[name]
        for other in states:
            self.set(name, float(other == state), **{label: other})

    def samples(self, at_s: float) -> Iterable[tuple[str, Labels, float]]:
        moving: dict[tuple[str, Labels], float] = defaultdict(float, self.values)
        run = ("run", self.run)
        for phase in PHASES:
            moving["rl_trainer_phase_seconds_total", (run, ("phase", phase))] += (
                at_s - self.phase_since if phase == self.phase else 0.0
            )
        moving["rl_pool_state_seconds_total", (run, ("pool", "engine"), ("state", "serving"))] = at_s
        for (name, labels), value in moving.items():
            yield name, labels, value

    def apply(self, at_s: float, event: events.Event) -> None:
        self.add("rl_events_total")
        self.set("rl_event_last_timestamp_seconds", 1_767_268_800 + at_s)
        self._of_training(at_s, event)
        self._of_rollouts(at_s, event)
        self._of_health(event)

    def _of_training(self, at_s: float, event: events.Event) -> None:
        match event:
            case events.PhaseEntered():
                self.add("rl_trainer_phase_seconds_total", at_s - self.phase_since, phase=self.phase)
                self.phase, self.phase_since = event.phase, at_s
                self.become("rl_trainer_phase", event.phase)
            case events.DeviceSampled():
                where = {"pool": event.pool, "phase": self.phase, "gpu": event.device}
                busy = event.utilization * event.window_s
                self.add("rl_gpu_busy_seconds_total", busy, **where)
                self.add("rl_gpu_allocated_seconds_total", event.window_s, **where)
                cause = CAUSES.get(self.phase, "low_use")
                self.add("rl_gpu_idle_seconds_total", event.window_s - busy, pool=event.pool, cause=cause)
                self.set("rl_gpu_utilization", event.utilization, pool=event.pool, gpu=event.device)
                self.set("rl_gpu_memory_bytes", event.memory_bytes, pool=event.pool, gpu=event.device)
                if event.sm_active is not None:
                    self.add("rl_gpu_sm_active_seconds_total", event.sm_active * event.window_s, **where)
            case events.BatchTaken():
                self.add("rl_buffer_groups", -len(event.groups))
                self.add("rl_buffer_left_total", len(event.groups), reason="trained")
                for _ in event.groups:
                    self.observe("rl_buffer_dwell_seconds", 2.0)
            case events.StepCompleted():
                self.add("rl_steps_total")
                self.set("rl_reward_mean", event.reward_mean)
                self.set("rl_loss", event.loss)
                for _ in range(2):
                    self.observe("rl_staleness_versions", event.lag_mean, range(17))
                for name, value in event.metrics.items():
                    self.set("rl_learner_metric", value, metric=name)
                self.add("rl_tokens_total", event.trained_tokens, kind="trained")
                self.add("rl_tokens_total", event.masked_tokens, kind="masked")
            case events.WeightsPublished():
                self.set("rl_weight_version", event.version)
            case events.SyncAcknowledged():
                self.set("rl_engine_weight_version", event.version, engine=event.engine)
                self.observe("rl_weight_sync_duration_seconds", event.seconds)
            case events.EvalCompleted():
                self.set("rl_eval_reward_mean", event.reward_mean or 0.0)
            case events.RunFinished():
                self.become("rl_run_outcome", event.outcome)

    def _of_rollouts(self, at_s: float, event: events.Event) -> None:
        match event:
            case events.GroupDispatched():
                self.add("rl_groups_dispatched_total")
                self.add("rl_groups_inflight")
            case events.GroupBuffered():
                self.add("rl_groups_inflight", -1)
                self.add("rl_buffer_groups")
                self.add("rl_groups_total", disposition="committed")
            case events.GroupFiltered():
                self.add("rl_groups_total", disposition="filtered")
            case events.GroupFailed():
                self.add("rl_groups_total", disposition="failed")
            case events.TrajectoryStarted():
                self.add("rl_rollouts_inflight", stage="other")
                self.set("rl_rollout_oldest_start_timestamp_seconds", 1_767_268_800 + at_s)
            case events.LlmCallFinished():
                self.add("rl_llm_calls_total", outcome=event.outcome)
                self.add("rl_llm_call_seconds_total", event.seconds)
                self.add("rl_llm_wall_seconds_total", event.seconds / 2)  # two calls at once
                self.observe("rl_llm_call_duration_seconds", event.seconds)
                self.add("rl_tokens_total", event.tokens, kind="sampled")
            case events.EnvStepFinished():
                self.observe(
                    "rl_env_step_duration_seconds", event.seconds, env="number_hunt", call=event.call
                )
            case events.TrajectoryCompleted():
                self.add("rl_rollouts_inflight", -1, stage="other")
                self.add("rl_trajectories_total", outcome="completed")
                parts = {
                    "queue": event.queue_s, "llm": event.llm_s, "env_setup": event.env_setup_s, "env": event.env_s,
                    "reward": event.reward_s, "other": event.other_s,
                }  # fmt: skip
                for part, seconds in parts.items():
                    self.add(
                        "rl_trajectory_component_seconds_total", seconds, env="number_hunt", component=part
                    )
                self.observe("rl_trajectory_duration_seconds", sum(parts.values()), env="number_hunt")
                self.add("rl_tokens_total", event.prompt_tokens, kind="prompt")

    def _of_health(self, event: events.Event) -> None:
        match event:
            case events.LoopLagSampled():
                bounds = (*events.LOOP_LAG_BOUNDS_S, float("inf"))
                below = 0
                for bound, count in zip(bounds, event.counts, strict=True):
                    below += count
                    said = "+Inf" if bound == float("inf") else str(bound)
                    self.add("rl_event_loop_lag_seconds_bucket", below, le=said)
                self.add("rl_event_loop_lag_seconds_sum", event.sum_s)
                self.add("rl_event_loop_lag_seconds_count", below)
            case events.TelemetryDropped():
                self.add("rl_telemetry_dropped_total", event.count, signal=event.signal, reason=event.reason)
            case events.TelemetryDegraded():
                self.set("rl_telemetry_degraded", 1.0, part=event.part)
            case events.DeadlineExpired():
                self.add("rl_deadlines_expired_total", effect=event.effect)
            case events.PromptQuarantined():
                self.add("rl_prompts_quarantined_total")
            case events.InvariantBroken():
                self.add("rl_invariants_broken_total", law=event.law)
            case events.StallDetected():
                self.add("rl_stalls_total", **{"class": event.stall_kind})
                self.become("rl_stall_verdict", event.stall_kind)
            case events.StallCleared():
                self.become("rl_stall_verdict", "")
