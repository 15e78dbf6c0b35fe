"""What the dashboard shows: one table of panels, each with the query that it asks and what its reader should do.

The queries are raw ones, not the recording rules: so the dashboard works on a log that was exported and loaded as well.
`$__rate_interval` and `$__range` are Grafana's, `$run` is the dashboard's own variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

Kind = Literal["timeseries", "stacked", "stat", "name", "bars", "states", "heatmap"]
"""``name`` is a stat that shows its series' name; ``bars`` and the stats ask for one moment, the others for a range."""

RUN = 'run=~"$run"'
PHASES = (
    "starting", "generating", "waiting_for_buffer", "converting", "training", "weight_sync", "eval", "checkpoint",
    "finished",
)  # fmt: skip
POOL_STATES = ("serving", "draining", "syncing", "idle", "down")
COLLECTOR_STATES = ("dispatching", "gated", "out_of_permits", "no_engine", "exhausted", "stopped")


class Query(NamedTuple):
    """One expression, and how its series are called in the legend."""

    expr: str
    legend: str


class Panel(NamedTuple):
    """One panel; `width` of 24 columns, `values` are the names of 0, 1, 2, ... where the value is a state."""

    title: str
    kind: Kind
    unit: str
    width: int
    text: str
    queries: Sequence[Query]
    values: Sequence[str] = ()


class Row(NamedTuple):
    """A titled row of panels that are `height` units high."""

    title: str
    height: int
    panels: Sequence[Panel]


def rate(metric: str, by: str, labels: str = "") -> str:
    """Return the growth per second of the counter `metric` by the labels `by`, over Grafana's window."""
    return f"sum by ({by}) (rate({metric}{{{RUN}{labels}}}[$__rate_interval]))"


def ratio(part: str, whole: str, by: str, of: str = "", among: str = "") -> str:
    """Return how much of the counter `whole` the counter `part` is; no series where nothing of `whole` passed.

    `of` and `among` are further labels of the two.
    """
    return f"{rate(part, by, of)} / ({rate(whole, by, among)} > 0)"


def total(metric: str, by: str, labels: str = "") -> str:
    """Return the growth of the counter `metric` over all that the dashboard shows."""
    return f"sum by ({by}) (increase({metric}{{{RUN}{labels}}}[$__range]))"


def quantiles(metric: str, by: str, legend: str, shares: Sequence[float] = (0.5, 0.9, 0.99)) -> list[Query]:
    """Return one query per share of the histogram `metric`."""
    buckets = rate(f"{metric}_bucket", f"{by}, le")
    return [Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:.0f} {legend}") for q in shares]


def state(metric: str, label: str, names: Sequence[str], labels: str = "") -> str:
    """Return one number per run: the place in `names` of the state that is active in a state set."""
    places = " or ".join(
        f'max by (run, {label}) ({metric}{{{RUN}{labels}, {label}="{name}"}}) * {place}'
        for place, name in enumerate(names)
    )
    return f"sum by (run) ({places})"


def _bound_by() -> str:
    """Return the largest claim on the wall clock: what the trainer does, or what the rollouts it waits for do.

    Over all that is shown: Grafana's own window is a minute or so, and would name the phase of the moment.
    """
    phase = "rl_trainer_phase_seconds_total"
    component = "rl_trajectory_component_seconds_total"
    waits = total(phase, "run", ', phase=~"waiting_for_buffer|generating"')
    whole = f"({total(component, 'run')} > 0)"

    def claim(name: str, expr: str) -> str:
        return f'label_replace({expr}, "bound", "{name}", "", "")'

    claims = (
        claim("trainer", total(phase, "run", ', phase=~"converting|training"')),
        claim("weight sync", total(phase, "run", ', phase="weight_sync"')),
        claim("evaluation and checkpoints", total(phase, "run", ', phase=~"eval|checkpoint"')),
        claim(
            "environment",
            f"{waits} * on (run) {total(component, 'run', _COMPONENTS['environment'])} / on (run) {whole}",
        ),
        claim(
            "engine",
            f"{waits} * on (run) {total(component, 'run', _COMPONENTS['engine'])} / on (run) {whole}",
        ),
    )
    return f"topk by (run) (1, {' or '.join(claims)}) / on (run) group_left () ({total(phase, 'run')} > 0)"


_COMPONENTS = {
    "environment": ', component=~"env|env_setup|reward"',
    "engine": ', component=~"llm|queue|other"',
}

VERDICT = Row("Verdict", 5, [
    Panel("How it stands", "name", "none", 4,
          "rl_run_outcome. Anything but running or completed: `eventrain status RUN` says why.",
          [Query(f"max by (run, outcome) (rl_run_outcome{{{RUN}}}) == 1", "{{outcome}}")]),
    Panel("Bound by", "name", "percentunit", 4,
          "rl_trainer_phase_seconds_total, rl_trajectory_component_seconds_total: the largest claim on the time shown, "
          "which should hold several steps; time in which the trainer waits is split as the rollouts' own time "
          "is. Spend devices there first.",
          [Query(_bound_by(), "{{bound}}")]),
    Panel("Last event", "stat", "s", 3,
          "rl_event_last_timestamp_seconds: how old the newest event is. Minutes in a running run: the controller "
          "hangs or its disk does not take writes.",
          [Query(f"time() - max by (run) (rl_event_last_timestamp_seconds{{{RUN}}})", "{{run}}")]),
    Panel("Step", "stat", "none", 3, "rl_steps_total: optimizer steps made, those that a resume rolled back included.",
          [Query(f"max by (run) (rl_steps_total{{{RUN}}})", "{{run}}")]),
    Panel("Targets that answer", "stat", "none", 3,
          "up: scrape targets of the job eventrain that answer. Empty where a log was loaded.",
          [Query('sum (up{job="eventrain"})', "up")]),
    Panel("Telemetry lost", "stat", "none", 3,
          "rl_telemetry_dropped_total: what did not arrive. The log is whole: `eventrain export` makes it again.",
          [Query(f"sum by (run) (rl_telemetry_dropped_total{{{RUN}}}) "
                 f"or on (run) 0 * max by (run) (rl_run_info{{{RUN}}})", "{{run}}")]),
    Panel("Stalls found", "stat", "none", 4,
          "rl_stalls_total: stalls that the run found in its own events. `eventrain stalls RUN` explains each.",
          [Query(f"sum by (run, class) (rl_stalls_total{{{RUN}}})", "{{class}}")]),
    Panel("Stall verdict", "states", "none", 24,
          "rl_stall_verdict: what the run finds wrong now. `eventrain stalls RUN` prints the chain to the first cause.",
          [Query(f"max by (run, class) (rl_stall_verdict{{{RUN}}})", "{{run}} {{class}}")],
          ("quiet", "stalled")),
])  # fmt: skip

_BUSY, _ALLOCATED = "rl_gpu_busy_seconds_total", "rl_gpu_allocated_seconds_total"

PHASE_AND_GPU = Row("Phase and device", 8, [
    Panel("Trainer", "states", "none", 8,
          "rl_trainer_phase as scraped: phases shorter than the scrape interval show by chance; the shares are exact.",
          [Query(state("rl_trainer_phase", "phase", PHASES), "{{run}}")], PHASES),
    Panel("Engine pool", "states", "none", 8,
          "rl_pool_state of the engine pool. Long draining: sync in flight instead; down: see Engines below.",
          [Query(state("rl_pool_state", "state", POOL_STATES, ', pool="engine"'), "{{run}}")], POOL_STATES),
    Panel("Collector", "states", "none", 8,
          "rl_collector_state. Gated: it waits for a version (the bound of staleness); out of permits: raise the "
          "groups in flight; exhausted: no data is left.",
          [Query(state("rl_collector_state", "state", COLLECTOR_STATES), "{{run}}")], COLLECTOR_STATES),
    Panel("Share of time by phase", "stacked", "percentunit", 12,
          "rl_trainer_phase_seconds_total, open phase included: each run's shares sum to one. Much waiting: look at "
          "Rollout; much weight_sync: at Weights.",
          [Query(rate("rl_trainer_phase_seconds_total", "run, phase"), "{{run}} {{phase}}")]),
    Panel("Use of devices by pool and phase", "timeseries", "percentunit", 12,
          "rl_gpu_busy_seconds_total by rl_gpu_allocated_seconds_total, integrated over event time and exact at any "
          "scrape interval. The learner low in training: larger batches; engines low: more groups in flight.",
          [Query(ratio(_BUSY, _ALLOCATED, "run, pool, phase"), "{{run}} {{pool}} {{phase}}")]),
    Panel("Use by pool and phase, over all that is shown", "bars", "percentunit", 8,
          "rl_gpu_busy_seconds_total by rl_gpu_allocated_seconds_total over the whole time shown: the figure to quote.",
          [Query(f"{total(_BUSY, 'run, pool, phase')} / ({total(_ALLOCATED, 'run, pool, phase')} > 0)",
                 "{{run}} {{pool}} {{phase}}")]),
    Panel("Idle device seconds by cause, over all that is shown", "bars", "s", 8,
          "rl_gpu_idle_seconds_total: what the idle time cost and why. The longest bar is the first to work on.",
          [Query(total("rl_gpu_idle_seconds_total", "run, pool, cause"), "{{run}} {{pool}} {{cause}}")]),
    Panel("Idle devices by cause", "stacked", "none", 8,
          "rl_gpu_idle_seconds_total per second, as it comes within a long step: how many devices idle. "
          "buffer_starvation: the trainer waits for "
          "groups; staleness_gate: engines wait for a version; straggler: for one rollout.",
          [Query(rate("rl_gpu_idle_seconds_total", "run, pool, cause"), "{{run}} {{pool}} {{cause}}")]),
    Panel("Busy, and at work", "timeseries", "percentunit", 12,
          "rl_gpu_sm_active_seconds_total beside rl_gpu_busy_seconds_total. Busy without active multiprocessors: a "
          "kernel spins, as in a collective that hangs.",
          [Query(ratio(_BUSY, _ALLOCATED, "run, pool"), "{{run}} {{pool}} busy"),
           Query(ratio("rl_gpu_sm_active_seconds_total", _ALLOCATED, "run, pool"), "{{run}} {{pool}} at work")]),
    Panel("Last sample of each device", "timeseries", "percentunit", 6,
          "rl_gpu_utilization: the newest sample; for sums use the panels before.",
          [Query(f"max by (run, pool, gpu) (rl_gpu_utilization{{{RUN}}})", "{{run}} {{pool}} {{gpu}}")]),
    Panel("Memory of each device", "timeseries", "bytes", 6,
          "rl_gpu_memory_bytes. Near the device's own: smaller micro batches or fewer slots.",
          [Query(f"max by (run, pool, gpu) (rl_gpu_memory_bytes{{{RUN}}})", "{{run}} {{pool}} {{gpu}}")]),
])  # fmt: skip

_COMPONENT = "rl_trajectory_component_seconds_total"

ROLLOUT = Row("Rollout", 8, [
    Panel("Where a trajectory's time goes", "stacked", "percentunit", 12,
          "rl_trajectory_component_seconds_total: the parts sum to the trajectories' wall time. Much queue: more "
          "engines; much env: more environments at once.",
          [Query(f"{rate(_COMPONENT, 'run, env, component')} / on (run, env) group_left () "
                 f"({rate(_COMPONENT, 'run, env')} > 0)", "{{run}} {{env}} {{component}}")]),
    Panel("Share of time in the environment", "timeseries", "percentunit", 6,
          "rl_trajectory_component_seconds_total: env and env_setup by all. Over a half: they bound the rollouts.",
          [Query(ratio(_COMPONENT, _COMPONENT, "run, env", ', component=~"env|env_setup"'), "{{run}} {{env}}")]),
    Panel("Duration of trajectories", "timeseries", "s", 6,
          "rl_trajectory_duration_seconds. A p99 far above the p50 is what steps wait for: `eventrain show RUN 57/3`.",
          quantiles("rl_trajectory_duration_seconds", "run, env", "{{run}} {{env}}")),
    Panel("Duration of calls to engines", "timeseries", "s", 6,
          "rl_llm_call_duration_seconds. Grows with the load: more engines or slots, or fewer groups in flight.",
          quantiles("rl_llm_call_duration_seconds", "run", "{{run}}")),
    Panel("Duration of calls to environments", "timeseries", "s", 6,
          "rl_env_step_duration_seconds by call: reset, step and reward. A slow reset asks for environments kept warm.",
          quantiles("rl_env_step_duration_seconds", "run, env, call", "{{run}} {{env}} {{call}}", (0.5, 0.99))),
    Panel("Calls to engines: wall time and sum", "timeseries", "none", 6,
          "rl_llm_wall_seconds_total (share of time with a call open), rl_llm_call_seconds_total (calls open at once). "
          "Wall well below one: engines wait for rollouts.",
          [Query(rate("rl_llm_wall_seconds_total", "run"), "{{run}} wall"),
           Query(rate("rl_llm_call_seconds_total", "run"), "{{run}} sum")]),
    Panel("Rollouts in flight by stage", "stacked", "none", 6,
          "rl_rollouts_inflight. All in env: environments bound the run; in retry: see failures below.",
          [Query(f"sum by (run, stage) (rl_rollouts_inflight{{{RUN}}})", "{{run}} {{stage}}")]),
    Panel("Age of the oldest rollout", "timeseries", "s", 8,
          "rl_rollout_oldest_start_timestamp_seconds. A line that only climbs is a straggler: `eventrain top RUN`.",
          [Query(f"time() - min by (run) (rl_rollout_oldest_start_timestamp_seconds{{{RUN}}})", "{{run}}")]),
    Panel("Trajectories per second", "stacked", "none", 8,
          "rl_trajectories_total by outcome. Failures: `eventrain events RUN --type trajectory_failed`.",
          [Query(rate("rl_trajectories_total", "run, outcome"), "{{run}} {{outcome}}")]),
    Panel("Calls to engines per second", "stacked", "none", 8,
          "rl_llm_calls_total by outcome. Lost and expired ones are made again, at the price of their tokens.",
          [Query(rate("rl_llm_calls_total", "run, outcome"), "{{run}} {{outcome}}")]),
])  # fmt: skip

BUFFER = Row("Buffer and staleness", 8, [
    Panel("Groups buffered, and room for them", "timeseries", "none", 8,
          "rl_buffer_groups, rl_buffer_capacity_groups. Always full: the trainer is the limit; empty: rollouts are.",
          [Query(f"max by (run) (rl_buffer_groups{{{RUN}}})", "{{run}} buffered"),
           Query(f"max by (run) (rl_buffer_capacity_groups{{{RUN}}})", "{{run}} capacity")]),
    Panel("Groups in flight", "timeseries", "none", 8,
          "rl_groups_inflight. Below what the policy allows while engines idle: see the collector's state.",
          [Query(f"max by (run) (rl_groups_inflight{{{RUN}}})", "{{run}}")]),
    Panel("Time in the buffer", "timeseries", "s", 8,
          "rl_buffer_dwell_seconds. Long: generation is ahead, and tokens grow stale while they wait.",
          quantiles("rl_buffer_dwell_seconds", "run", "{{run}}")),
    Panel("Staleness of what is trained", "heatmap", "none", 12,
          "rl_staleness_versions: lag in versions of trained groups. Crowded at the bound: raise it or sync sooner.",
          [Query(rate("rl_staleness_versions_bucket", "le"), "{{le}}")]),
    Panel("Staleness, quantiles and mean", "timeseries", "none", 12,
          "rl_staleness_versions. Rising with a falling reward: lower scheduler.max_staleness.",
          [*quantiles("rl_staleness_versions", "run", "{{run}}", (0.5, 0.99)),
           Query(ratio("rl_staleness_versions_sum", "rl_staleness_versions_count", "run"), "mean {{run}}")]),
    Panel("What became of groups, over all that is shown", "bars", "none", 8,
          "rl_groups_total by disposition. Only committed ones are trained: the others are work thrown away.",
          [Query(total("rl_groups_total", "run, disposition"), "{{run}} {{disposition}}")]),
    Panel("Groups per minute", "stacked", "none", 8,
          "rl_groups_total, as they leave flight. Filtered: too easy or too hard; failed: `eventrain status RUN`.",
          [Query(f"60 * {rate('rl_groups_total', 'run, disposition')}", "{{run}} {{disposition}}")]),
    Panel("Groups dispatched and leaving the buffer, per minute", "timeseries", "none", 8,
          "rl_groups_dispatched_total, rl_buffer_left_total. Dispatched is, in time, trained plus what is lost.",
          [Query(f"60 * {rate('rl_groups_dispatched_total', 'run')}", "{{run}} dispatched"),
           Query(f"60 * {rate('rl_buffer_left_total', 'run, reason')}", "{{run}} {{reason}}")]),
])  # fmt: skip

WEIGHTS = Row("Weights", 8, [
    Panel("Versions made and served", "timeseries", "none", 8,
          "rl_weight_version, rl_engine_weight_version. An engine that stays behind serves old weights: restart it.",
          [Query(f"max by (run) (rl_weight_version{{{RUN}}})", "{{run}} made"),
           Query(f"max by (run, engine) (rl_engine_weight_version{{{RUN}}})", "{{run}} {{engine}}")]),
    Panel("How far the last engine is behind", "timeseries", "none", 4,
          "rl_weight_version minus the lowest rl_engine_weight_version. Over one: syncs take longer than steps.",
          [Query(f"max by (run) (rl_weight_version{{{RUN}}}) "
                 f"- on (run) min by (run) (rl_engine_weight_version{{{RUN}}})", "{{run}}")]),
    Panel("Time of a sync", "timeseries", "s", 6,
          "rl_weight_sync_duration_seconds. Long: engine.sync_mode in_flight, or a faster way for the weights.",
          quantiles("rl_weight_sync_duration_seconds", "run", "{{run}}", (0.5, 0.99))),
    Panel("Device time lost to syncs", "timeseries", "percentunit", 6,
          "rl_gpu_idle_seconds_total of cause weight_sync, by rl_gpu_allocated_seconds_total. Over a fifth of an "
          "hour alerts; the window here is short, and shows long steps' syncs one by one.",
          [Query(ratio("rl_gpu_idle_seconds_total", _ALLOCATED, "run, pool", ', cause="weight_sync"'),
                 "{{run}} {{pool}}")]),
])  # fmt: skip

ENGINES = Row("Engines", 8, [
    Panel("Engines by state", "stacked", "none", 8,
          "rl_engines. Lost ones: `eventrain events RUN --type engine_lost`.",
          [Query(f"sum by (run, state) (rl_engines{{{RUN}}})", "{{run}} {{state}}")]),
    Panel("Share of time by state of the pool", "stacked", "percentunit", 8,
          "rl_pool_state_seconds_total, open state included. Idle: nobody asks them, see the collector.",
          [Query(rate("rl_pool_state_seconds_total", "run, pool, state"), "{{run}} {{pool}} {{state}}")]),
    Panel("Tokens per second", "timeseries", "none", 8,
          "rl_tokens_total: sampled is what engines make, trained is what the loss sees of it.",
          [Query(rate("rl_tokens_total", "run, kind"), "{{run}} {{kind}}")]),
])  # fmt: skip

LEARNING = Row("Learning", 8, [
    Panel("Reward", "timeseries", "none", 8,
          "rl_reward_mean of trained groups, rl_eval_reward_mean. They part: it learns what only training scores.",
          [Query(f"max by (run) (rl_reward_mean{{{RUN}}})", "{{run}} training"),
           Query(f"max by (run) (rl_eval_reward_mean{{{RUN}}})", "{{run}} evaluation")]),
    Panel("Loss", "timeseries", "none", 8, "rl_loss of the newest step. A jump: look at staleness and learner.lr.",
          [Query(f"max by (run) (rl_loss{{{RUN}}})", "{{run}}")]),
    Panel("What the learner tells", "timeseries", "none", 8,
          "rl_learner_metric: whatever the algorithm reports (KL, entropy, clipped share, norm of the gradient).",
          [Query(f"max by (run, metric) (rl_learner_metric{{{RUN}}})", "{{run}} {{metric}}")]),
    Panel("Steps per hour", "timeseries", "none", 8, "rl_steps_total: what all the rest is for.",
          [Query(f"3600 * {rate('rl_steps_total', 'run')}", "{{run}}")]),
    Panel("Groups that teach nothing", "timeseries", "percentunit", 8,
          "rl_groups_total filtered by all that were finished. Over a half: other prompts.",
          [Query(ratio("rl_groups_total", "rl_groups_total", "run", ', disposition="filtered"',
                       ', disposition=~"filtered|committed"'), "{{run}}")]),
    Panel("Sampled tokens that are masked", "timeseries", "percentunit", 8,
          "rl_tokens_total masked, by masked and trained: too old for the loss.",
          [Query(ratio("rl_tokens_total", "rl_tokens_total", "run", ', kind="masked"', ', kind=~"masked|trained"'),
                 "{{run}}")]),
])  # fmt: skip

HEALTH = Row("Health of the telemetry", 7, [
    Panel("Events per second", "timeseries", "none", 6, "rl_events_total: what the log takes in.",
          [Query(rate("rl_events_total", "run"), "{{run}}")]),
    Panel("Lag of the controller's loop", "timeseries", "s", 6,
          "rl_event_loop_lag_seconds. Over 0.1 s: something blocks the loop, and all that is timed is timed late.",
          quantiles("rl_event_loop_lag_seconds", "run", "{{run}}", (0.5, 0.99))),
    Panel("Timing residual", "timeseries", "percentunit", 6,
          "rl_trajectory_component_seconds_total minus the sum of rl_trajectory_duration_seconds, by it. Not zero: the "
          "parts do not add up, and no panel of them is to be trusted.",
          [Query(f"({rate(_COMPONENT, 'run')} - {rate('rl_trajectory_duration_seconds_sum', 'run')}) / "
                 f"({rate('rl_trajectory_duration_seconds_sum', 'run')} > 0)", "{{run}}")]),
    Panel("Time of a scrape", "timeseries", "s", 6,
          "scrape_duration_seconds: over 0.1 s it can be felt by the run. Empty where a log was loaded.",
          [Query('max by (instance) (scrape_duration_seconds{job="eventrain"})', "{{instance}}")]),
    Panel("Telemetry lost, by signal", "timeseries", "none", 6,
          "rl_telemetry_dropped_total by signal and reason. Empty: nothing was lost; else look at the receiver.",
          [Query(f"sum by (run, signal, reason) (rl_telemetry_dropped_total{{{RUN}}})",
                 "{{run}} {{signal}} {{reason}}")]),
    Panel("Telemetry that works less than asked", "timeseries", "none", 6,
          "rl_telemetry_degraded: `eventrain events RUN --type telemetry_degraded` says what is missing and why.",
          [Query(f"max by (run, part) (rl_telemetry_degraded{{{RUN}}})", "{{run}} {{part}}")]),
    Panel("Deadlines expired and prompts quarantined", "timeseries", "none", 6,
          "rl_deadlines_expired_total, rl_prompts_quarantined_total. Empty: none. Many of one effect: [deadlines].",
          [Query(f"sum by (run, effect) (rl_deadlines_expired_total{{{RUN}}})", "{{run}} {{effect}}"),
           Query(f"sum by (run) (rl_prompts_quarantined_total{{{RUN}}})", "{{run}} quarantined")]),
    Panel("Laws broken", "timeseries", "none", 6,
          "rl_invariants_broken_total. Empty or zero: the accounting holds. Else `eventrain log verify RUN`.",
          [Query(f"sum by (run, law) (rl_invariants_broken_total{{{RUN}}})", "{{run}} {{law}}")]),
])  # fmt: skip

ROWS: Sequence[Row] = (VERDICT, PHASE_AND_GPU, ROLLOUT, BUFFER, WEIGHTS, ENGINES, LEARNING, HEALTH)
