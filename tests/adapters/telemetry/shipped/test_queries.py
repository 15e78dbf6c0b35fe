"""Every query that ships, run by a real Prometheus on a run whose every second is known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from programs import needs
from prometheus import Prometheus, Sample
from told_openmetrics import openmetrics, run_of
from told_runs import START_TS, STEP, Stretch, ToldRun, phased_run

from eventrain.adapters.telemetry.shipped import dashboard
from eventrain.adapters.telemetry.shipped.panels import ROWS, RUN, Query
from eventrain.events import types as events

pytestmark = [
    pytest.mark.slow,
    needs("prometheus", "promtool"),
]

STEPS = 120
START_S = START_TS / 1e9
ASKED_S = START_S + 1800
"""Half an hour into a run that takes some seconds more."""
QUERIES = {f"{panel.title} {place}": query for row in ROWS for panel in row.panels
           for place, query in enumerate(panel.queries)}  # fmt: skip
RULES = yaml.safe_load((dashboard.HERE / "rules" / "recording.yml").read_text(encoding="utf-8"))
RECORDED = {rule["record"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"]}

OF_THE_SCRAPE = {
    "Targets that answer 0": "up is written by a Prometheus that scrapes",
    "Time of a scrape 0": "scrape_duration_seconds is written by a Prometheus that scrapes",
}
EMPTY_WHEN_WELL = {
    "Busy, and at work 1": "the chips of this run do not count active multiprocessors",
    "Reward 1": "the run has no evaluation",
    "Lag of the controller's loop 0": "no sample of the loop's lag was told: 0 / 0",
    "Lag of the controller's loop 1": "no sample of the loop's lag was told: 0 / 0",
    "Telemetry lost, by signal 0": "nothing was lost",
    "Deadlines expired and prompts quarantined 0": "no deadline expired",
    "Laws broken 0": "no law was broken",
}
"""Queries that find nothing in a run that is well; the troubled run gives each of them something."""

ZERO_WHEN_WELL = (
    "Stalls found 0",
    "Stall verdict 0",
    "Telemetry lost 0",
    "Telemetry that works less than asked 0",
    "Deadlines expired and prompts quarantined 1",
    "Groups that teach nothing 0",
)
"""Queries that find zero in a run that is well, and something else in the troubled one."""


def distractor() -> ToldRun:
    """Return another run of the same minutes, which does everything else than the first."""
    stretches = (Stretch("training", 3.0, 0.5, 0.5), Stretch("weight_sync", 9.0, 0.9, 0.9),
                 Stretch("waiting_for_buffer", 1.0, 0.7, 0.1), Stretch("converting", 0.5, 0.4, 0.2))  # fmt: skip
    return phased_run(150, stretches=stretches, name="distractor", start_ts=START_TS)


def troubled() -> ToldRun:
    """Return a run in which each rare thing happens, again and again for half an hour."""
    told = phased_run(1, name="troubled", finish=False)
    for round_number in range(120):
        told.at(20 + 15 * round_number)
        for event in _troubles(round_number):
            told.publish("telemetry", event)
    return told


def _troubles(number: int) -> Sequence[events.Event]:
    buckets = (8, 4, 2, *[0] * 8, 1)
    return (
        events.DeviceSampled(device="cuda:0", pool="learner", utilization=1.0, memory_bytes=2**30, window_s=15.0,
                             sm_active=0.125),
        events.LoopLagSampled(window_s=15.0, counts=buckets, sum_s=2.0, max_s=1.9),
        events.EvalCompleted(eval=number, step=number, version=number, reward_mean=0.75, completed=4, failed=0,
                             seconds=1.0),
        events.GroupDispatched(group=100 + number, prompt=100 + number, target=number, version=1, size=2),
        events.GroupFiltered(group=100 + number, reason="zero_variance", reward_mean=1.0),
        events.TelemetryDropped(signal="traces", reason="unreachable", count=40),
        events.TelemetryDegraded(part="devices", missing="no NVML", works="psutil"),
        events.DeadlineExpired(effect="env_step", subject="3/1", limit_s=60.0),
        events.PromptQuarantined(prompt=number, index=number, failure="refused", message="no"),
        events.InvariantBroken(law="groups", broken_by=3, expected="4", found="3"),
        events.StallDetected(stall=number, stall_kind="overdue", chain=("the trainer waits",), sentence="late"),
    )  # fmt: skip


@pytest.fixture(name="server", scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus that has the run, and the distractor beside it."""
    folder = tmp_path_factory.mktemp("prometheus")
    with Prometheus(folder / "server") as server:
        for told in (phased_run(STEPS), distractor()):
            server.load_openmetrics(openmetrics(told))
        server.load_openmetrics(_scraped())
        yield server


@pytest.fixture(name="alone", scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus that has the run and nothing else."""
    folder = tmp_path_factory.mktemp("alone")
    with Prometheus(folder / "server") as server:
        server.load_openmetrics(openmetrics(phased_run(STEPS)))
        server.load_openmetrics(_scraped())
        yield server


@pytest.fixture(name="trouble", scope="module")
def _trouble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus that has the troubled run."""
    folder = tmp_path_factory.mktemp("trouble")
    with Prometheus(folder / "server") as server:
        server.load_openmetrics(openmetrics(troubled()))
        yield server


def _scraped() -> str:
    """Return what a Prometheus that scrapes writes of its own."""
    at = [START_S + 15 * number for number in range(121)]
    labels = '{job="eventrain",instance="box:9464"}'
    lines = [f"scrape_duration_seconds{labels} 0.01 {when:.3f}" for when in at]
    return "\n".join([*lines, *(f"up{labels} 1 {when:.3f}" for when in at), "# EOF", ""])


def substituted(expr: str, told: ToldRun) -> str:
    """Return `expr` as Grafana sends it, for a dashboard that shows 25 minutes of one run."""
    text = expr.replace("$__rate_interval", "5m").replace("$__range", "25m").replace("$run", run_of(told))
    assert "$" not in text
    return text


def finite(samples: Sequence[Sample]) -> list[Sample]:
    """Return those that are numbers: 0 / 0, a quantile of nothing, is shown as a gap."""
    return [sample for sample in samples if not math.isnan(sample.value)]


def found(
    server: Prometheus, title: str, *labels: str, told: ToldRun | None = None
) -> dict[tuple[str, ...], float]:
    """Return what the query called `title` finds, by the values of `labels`."""
    expr = substituted(QUERIES[title].expr, told or phased_run(1))
    samples = server.query(expr, ASKED_S)
    by_labels = {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}
    assert len(by_labels) == len(samples)
    return by_labels


@pytest.mark.parametrize("title", QUERIES)
def test_every_query_of_the_dashboard_finds_its_run_and_no_other(
    title: str, server: Prometheus, alone: Prometheus
) -> None:
    """Each query gives a series at least, and the same with and without another run in the store."""
    expr = substituted(QUERIES[title].expr, phased_run(1))
    samples = finite(server.query(expr, ASKED_S))
    assert bool(samples) is (title not in EMPTY_WHEN_WELL)
    assert _rounded(samples) == _rounded(finite(alone.query(expr, ASKED_S)))
    assert {sample.labels.get("run", run_of(phased_run(1))) for sample in samples} <= {run_of(phased_run(1))}


@pytest.mark.parametrize("title", QUERIES)
def test_every_query_takes_several_runs(title: str, server: Prometheus) -> None:
    """With two runs chosen, no join fails, and each query that names its runs finds both."""
    both = f"{run_of(phased_run(1))}|{run_of(distractor())}"
    expr = QUERIES[title].expr.replace("$run", both)
    samples = server.query(expr.replace("$__rate_interval", "5m").replace("$__range", "25m"), ASKED_S)
    assert len({sample.labels["run"] for sample in samples if "run" in sample.labels}) in {0, 2}


@pytest.mark.parametrize("title", [*EMPTY_WHEN_WELL, *ZERO_WHEN_WELL])
def test_what_is_empty_or_zero_in_a_run_that_is_well_is_not_in_one_that_is_not(
    title: str, alone: Prometheus, trouble: Prometheus
) -> None:
    """Each of these queries finds nothing in the run that is well, and what the troubled run has of it in that."""
    assert not any(
        sample.value
        for sample in finite(alone.query(substituted(QUERIES[title].expr, phased_run(1)), ASKED_S))
    )
    assert any(
        sample.value
        for sample in finite(trouble.query(substituted(QUERIES[title].expr, troubled()), ASKED_S))
    )


@pytest.mark.parametrize("name", RECORDED)
def test_every_recording_rule_finds_each_run_apart(name: str, server: Prometheus, alone: Prometheus) -> None:
    """Each recorded expression gives series of both runs, and those of the one do not depend on the other."""
    told = run_of(phased_run(1))
    samples = server.query(RECORDED[name], ASKED_S)
    assert {sample.labels["run"] for sample in samples} == {told, run_of(distractor())}
    assert _rounded([one for one in samples if one.labels["run"] == told]) == _rounded(
        alone.query(RECORDED[name], ASKED_S)
    )


def test_the_marks_of_stalls_are_asked_for_like_the_panels(trouble: Prometheus) -> None:
    """The annotation's query finds the stall that stands."""
    (marks,) = dashboard.dashboard()["annotations"]["list"]
    (sample,) = trouble.query(substituted(marks["expr"], troubled()), ASKED_S)
    assert sample.labels["class"] == "overdue"


def test_runs_to_choose_from_are_those_in_the_store(server: Prometheus) -> None:
    """The variable of the dashboard reads the label of a series that every run has."""
    (_, variable) = dashboard.dashboard()["templating"]["list"]
    assert variable["definition"] == "label_values(rl_run_info, run)"
    assert RUN.partition("=")[0] in {
        key for one in server.query("rl_run_info", ASKED_S) for key in one.labels
    }
    assert len(server.query("count by (run) (rl_run_info)", ASKED_S)) == 2


@pytest.mark.parametrize(
    "title", ["Use of devices by pool and phase 0", "Use by pool and phase, over all that is shown 0"]
)
def test_use_by_phase_is_the_truth(title: str, server: Prometheus) -> None:
    """Within half a point, also for the phase of 0.1 s, which is 150 times shorter than the scrape interval."""
    use = found(server, title, "pool", "phase")
    for stretch in STEP:
        assert use["learner", stretch.phase] == pytest.approx(stretch.learner, abs=0.005)
        assert use["engine", stretch.phase] == pytest.approx(stretch.engine, abs=0.005)
    assert len(use) == 2 * len(STEP)


def test_shares_of_time_by_phase_are_the_truth_and_sum_to_one(server: Prometheus) -> None:
    """Within half a point of each phase's part of a step."""
    shares = found(server, "Share of time by phase 0", "phase")
    whole = sum(stretch.seconds for stretch in STEP)
    for stretch in STEP:
        assert shares[stretch.phase,] == pytest.approx(stretch.seconds / whole, abs=0.005)
    assert sum(shares.values()) == pytest.approx(1.0, abs=0.001)


def test_idle_time_by_cause_is_the_truth(server: Prometheus) -> None:
    """What the devices did not do, over 25 minutes: as much as they idled, each second with its own cause."""
    idle = found(server, "Idle device seconds by cause, over all that is shown 0", "pool", "cause")
    steps = 25 * 60 / sum(stretch.seconds for stretch in STEP)
    waiting, converting, training, syncing = STEP
    learner = {cause: seconds for (pool, cause), seconds in idle.items() if pool == "learner" and seconds}
    # Of the four seconds of waiting, the first of two groups takes 0.75; from then on a single one is missing.
    assert learner == {
        "buffer_starvation": pytest.approx(steps * 0.75 * (1 - waiting.learner), rel=0.02),
        "straggler": pytest.approx(steps * 3.25 * (1 - waiting.learner), rel=0.02),
        "converting": pytest.approx(steps * 0.1 * (1 - converting.learner), rel=0.02),
        "low_use": pytest.approx(steps * 9.0 * (1 - training.learner), rel=0.02),
        "weight_sync": pytest.approx(steps * 2.0 * (1 - syncing.learner), rel=0.02),
    }
    assert idle["engine", "weight_sync"] == pytest.approx(steps * 2.0 * (1 - syncing.engine), rel=0.02)
    busy = {
        "learner": sum(s.seconds * s.learner for s in STEP),
        "engine": sum(s.seconds * s.engine for s in STEP),
    }
    for pool, seconds in busy.items():
        total = sum(value for (owner, _), value in idle.items() if owner == pool)
        assert total == pytest.approx(25 * 60 - steps * seconds, rel=0.01)


def test_the_share_in_the_environment_is_the_truth(server: Prometheus) -> None:
    """A third: a quarter of a second of environment to half a second of engine."""
    (share,) = found(server, "Share of time in the environment 0", "env").values()
    assert share == pytest.approx(1 / 3, abs=0.005)
    parts = found(server, "Where a trajectory's time goes 0", "component")
    assert parts["llm",] == pytest.approx(2 / 3, abs=0.005)
    assert sum(parts.values()) == pytest.approx(1.0, abs=0.001)


def test_what_became_of_groups_is_the_truth(server: Prometheus) -> None:
    """Two groups per step are committed and as many trained, over 25 minutes; none is lost."""
    groups = 2 * 25 * 60 / sum(stretch.seconds for stretch in STEP)
    became = found(server, "What became of groups, over all that is shown 0", "disposition")
    assert became["committed",] == pytest.approx(groups, rel=0.02)
    assert sum(became.values()) == pytest.approx(groups, rel=0.02)
    left = found(server, "Groups dispatched and leaving the buffer, per minute 1", "reason")
    assert left["trained",] == pytest.approx(groups / 25, rel=0.05)


def test_states_are_shown_as_their_places(server: Prometheus) -> None:
    """A timeline's value is the place of the active state in the mapping, moment for moment."""
    expr = substituted(QUERIES["Trainer 0"].expr, phased_run(1))
    (series,) = server.query_range(expr, START_S + 60, START_S + 1800, step=15.0)
    options = next(panel for panel in dashboard.dashboard()["panels"] if panel["title"] == "Trainer")
    (mapping,) = options["fieldConfig"]["defaults"]["mappings"]
    seen = {mapping["options"][str(int(value))]["text"] for _, value in series.points}
    assert (
        {"training", "waiting for buffer", "weight sync"}
        <= seen
        <= {stretch.phase.replace("_", " ") for stretch in STEP}
    )


def test_a_share_of_nothing_is_no_share(trouble: Prometheus) -> None:
    """Where nothing passes, as in a run that trains no more, shares are absent; only quantiles may be no number."""
    for title, query in QUERIES.items():
        samples = trouble.query(substituted(query.expr, troubled()), ASKED_S)
        assert len(finite(samples)) == len(samples) or "histogram_quantile" in query.expr, title


def test_what_bounds_the_run_is_its_largest_claim(server: Prometheus) -> None:
    """Nine of 15 seconds of training, and a ninth in converting: the trainer."""
    assert found(server, "Bound by 0", "bound") == {("trainer",): pytest.approx(9.1 / 15.1, abs=0.005)}


def test_what_bounds_a_run_that_waits_is_what_its_rollouts_do(tmp_path: Path) -> None:
    """A run that waits most of its time is bound by engines where two thirds of its rollouts' time are theirs."""
    told = phased_run(
        60, stretches=(Stretch("waiting_for_buffer", 12.0, 0.1, 0.9), Stretch("training", 3.0, 0.9, 0.9))
    )
    with Prometheus(tmp_path / "server") as server:
        server.load_openmetrics(openmetrics(told))
        samples = server.query(substituted(QUERIES["Bound by 0"].expr, told), START_S + 840)
    assert [sample.labels["bound"] for sample in samples] == ["engine"]
    assert samples[0].value == pytest.approx(0.8 * 2 / 3, abs=0.01)


def test_the_parts_of_trajectories_add_up(server: Prometheus) -> None:
    """The residual between the parts and the whole is nothing."""
    assert list(found(server, "Timing residual 0").values()) == [pytest.approx(0.0, abs=1e-9)]


def test_quantiles_lie_in_the_bucket_of_the_truth(server: Prometheus) -> None:
    """Each sync takes 2 s, each call 0.5 s, each trajectory 0.75 s: quantiles are within the buckets around them."""
    for title, low, high in (
        ("Time of a sync 0", 1.0, 4.0),
        ("Duration of calls to engines 0", 0.25, 0.81),
        ("Duration of trajectories 2", 0.4, 1.6),
    ):
        (value,) = found(server, title).values()
        assert low <= value <= high, title
    assert list(found(server, "Staleness, quantiles and mean 2").values()) == [pytest.approx(1.0)]


def test_a_wrong_query_is_an_error_and_no_empty_answer(alone: Prometheus) -> None:
    """What Prometheus refuses raises, with its words."""
    with pytest.raises(Exception, match="parse error"):
        alone.query("sum by (run", ASKED_S)


def test_no_query_is_left_out_of_the_tests() -> None:
    """The lists of exceptions name queries that exist, and no more than are needed."""
    assert set(EMPTY_WHEN_WELL) | set(OF_THE_SCRAPE) <= set(QUERIES)
    assert all(isinstance(query, Query) for query in QUERIES.values())


def _rounded(samples: Sequence[Sample]) -> Mapping[tuple[tuple[str, str], ...], float]:
    return {tuple(sorted(sample.labels.items())): round(sample.value, 9) for sample in samples}
