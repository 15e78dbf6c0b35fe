"""The alerts' expressions on logs of whole runs: well, ended, and standing still for one reason after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from programs import needs
from prometheus import Prometheus
from told_openmetrics import openmetrics
from told_runs import START_TS, ToldRun, phased_run

from eventrain.adapters.telemetry.shipped import dashboard
from eventrain.events import types as events

pytestmark = [
    pytest.mark.slow,
    needs("prometheus", "promtool"),
]

START_S = START_TS / 1e9
ALERTS = yaml.safe_load((dashboard.HERE / "rules" / "alerts.yml").read_text(encoding="utf-8"))
ALERTING = [rule for group in ALERTS["groups"] for rule in group["rules"]]


@pytest.fixture(name="alone", scope="module")
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Return a Prometheus that has a run of half an hour which is well."""
    with Prometheus(tmp_path_factory.mktemp("alone") / "server") as server:
        server.load_openmetrics(openmetrics(phased_run(120)))
        yield server


@pytest.mark.parametrize("at_s", [START_S + 1800, START_S + 1820], ids=["running", "ended"])
@pytest.mark.parametrize("rule", ALERTING, ids=lambda rule: f"{rule['alert']} {rule['labels']['severity']}")
def test_no_alert_fires_on_a_run_that_is_well(
    rule: Mapping[str, str], at_s: float, alone: Prometheus
) -> None:
    """No alert finds anything in a run that trains, waits a little and syncs a little, nor when it has ended."""
    assert alone.query(rule["expr"], at_s) == []


@pytest.mark.parametrize("stall", ["deadlock", "straggler", "exhausted", "verdict", "over"])
def test_each_stall_raises_its_own_alert_alone(stall: str, tmp_path: Path) -> None:
    """From the log to the alert: only the one fires that says what holds this run, and none where it failed."""
    expected = {
        "deadlock": {"RLTrainerStarvedDeadlock"},
        "straggler": {"RLRolloutStraggler"},
        "exhausted": {"RLDatasetExhausted"},
        "verdict": {"RLStallVerdict", "RLTrainerStarvedDeadlock"},
        "over": set(),
    }
    told = standing_still(stall)
    asked_s = START_S + told.now_s
    with Prometheus(tmp_path / "server") as server:
        server.load_openmetrics(openmetrics(told))
        fires = {rule["alert"] for rule in ALERTING if server.query(rule["expr"], asked_s)}
    assert fires == expected[stall]


def standing_still(stall: str) -> ToldRun:
    """Return a run that trains for ten minutes and then waits for a batch, for 45 minutes and the reason named."""
    told = phased_run(40, name=stall, finish=False)
    told.publish("trainer", events.PhaseEntered(phase="waiting_for_buffer", step=40))
    waits = events.Blocked(
        waiter="trainer", edge="buffer_ready", awaited="step 40: 2 groups", present="0 buffered"
    )
    seen = told.publish("trainer", waits)
    match stall:
        case "straggler":
            told.dispatch(80, target=40, version=40)
        case "exhausted":
            told.publish("collector", events.DataExhausted(drawn=80, quarantined=0))
            drained = events.Blocked(
                waiter="collector", edge="drained", awaited="nothing in flight", present="0"
            )
            told.publish("collector", drained)
        case "verdict":
            found = events.StallDetected(
                stall=0,
                stall_kind="deadlock",
                chain=("the trainer waits",),
                sentence="a deadlock",
                first_cause=seen.seq,
            )
            told.publish("watchdog", found)
    for _ in range(45):
        told.after(60.0).publish(
            "telemetry",
            events.DeviceSampled(
                device="cuda:0", pool="learner", utilization=0.0, memory_bytes=0, window_s=60.0
            ),
        )
    if stall == "over":
        told.publish(
            "run", events.RunFailed(failed_actor="trainer", error="DeadlineExpired", message="no batch came")
        )
    return told
