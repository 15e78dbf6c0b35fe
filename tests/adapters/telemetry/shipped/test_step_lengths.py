"""The alerts on shares of time, for steps of many lengths: what is cut by a window must not look like what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from programs import needs
from prometheus import PrometheusFailed, promtool

from eventrain.adapters.telemetry.metrics.catalog import ENVIRONMENT_BOUNDS_S
from eventrain.adapters.telemetry.shipped import dashboard

RULES = dashboard.HERE / "rules" / "alerts.yml"
SCRAPE_S = 15
HOURS = 3
LENGTHS_S = (0.2, 61, 11 * 60, 20 * 60, 1210, 24 * 60)
"""Of steps; those around 23 minutes lie worst to a window of one hour: it holds two and a half of them."""
ANY_MOMENT = f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{HOURS}h]))'


class Shares(NamedTuple):
    """How a step is spent: waiting first, then training, then the sync; engines idle as the training begins."""

    waiting: float
    training: float
    syncing: float
    idle: float
    environment: float


TRAINS = Shares(waiting=0.157, training=0.66, syncing=0.183, idle=0.4, environment=0.6)
"""Training below 70 %, idle for weights below 20 %, and environments that hardly anybody waits for."""
WAITS = Shares(waiting=0.4, training=0.45, syncing=0.15, idle=0.2, environment=0.45)
"""The trainer waits, and environments take less than half of the rollouts' time."""
BEYOND = {
    "RLGenerationBackpressured": Shares(0.1, 0.8, 0.1, 0.4, 0.4),
    "RLGpuIdleInWeightSync": Shares(0.15, 0.55, 0.3, 0.2, 0.4),
    "RLEnvironmentBound": Shares(0.3, 0.6, 0.1, 0.1, 0.6),
}


def passed(at_s: float, step_s: float, begin: float, end: float) -> float:
    """Return how much of the part of each step from `begin` to `end`, in shares of it, has passed by `at_s`."""
    whole, rest = divmod(at_s, step_s)
    return whole * (end - begin) * step_s + min(max(rest - begin * step_s, 0.0), (end - begin) * step_s)


def series(shares: Shares, step_s: float, at_s: float) -> Mapping[str, float]:
    """Return what a run of equal steps shows at `at_s`: its rollouts' parts grow at once, as a wait ends."""
    trains, syncs = shares.waiting, shares.waiting + shares.training
    ended = ((at_s - trains * step_s) // step_s + 1) * 8 * step_s
    idle = passed(at_s, step_s, trains, trains + shares.idle)
    return {
        'rl_trainer_phase_seconds_total{run="r", phase="waiting_for_buffer"}': passed(at_s, step_s, 0, trains),
        'rl_trainer_phase_seconds_total{run="r", phase="training"}': passed(at_s, step_s, trains, syncs),
        'rl_trainer_phase_seconds_total{run="r", phase="weight_sync"}': passed(at_s, step_s, syncs, 1),
        'rl_pool_state_seconds_total{run="r", pool="engine", state="idle"}': idle,
        'rl_pool_state_seconds_total{run="r", pool="engine", state="serving"}': at_s - idle,
        'rl_gpu_allocated_seconds_total{run="r", pool="engine", phase="training", gpu="0"}': at_s,
        'rl_gpu_idle_seconds_total{run="r", pool="engine", cause="weight_sync"}': passed(at_s, step_s, syncs, 1),
        'rl_trajectory_component_seconds_total{run="r", component="env"}': ended * shares.environment,
        'rl_trajectory_component_seconds_total{run="r", component="llm"}': ended * (1 - shares.environment),
        'rl_steps_total{run="r"}': (at_s - syncs * step_s) // step_s + 1,
        'rl_run_outcome{run="r", outcome="running"}': 1,
    }  # fmt: skip


def said_of(shares: Shares, step_s: float, folder: Path) -> str:
    """Return what promtool says of a test that no alert fires at any moment of three hours of such steps."""
    moments = [series(shares, step_s, at_s) for at_s in range(0, HOURS * 3600 + 1, SCRAPE_S)]
    case = {
        "interval": f"{SCRAPE_S}s",
        "input_series": [
            {"series": name, "values": " ".join(f"{moment[name]:.3f}" for moment in moments)}
            for name in moments[0]
        ],
        "promql_expr_test": [{"expr": ANY_MOMENT, "eval_time": f"{HOURS}h", "exp_samples": []}],
    }
    path = folder / "steps.yml"
    rules = {"rule_files": [str(RULES)], "evaluation_interval": f"{SCRAPE_S}s"}
    path.write_text(yaml.safe_dump({**rules, "tests": [case]}), encoding="utf-8")
    try:
        return promtool("test", "rules", path)
    except PrometheusFailed as failed:
        return str(failed)


@pytest.mark.slow
@needs("prometheus", "promtool")
@pytest.mark.parametrize("step_s", LENGTHS_S)
@pytest.mark.parametrize("shares", [TRAINS, WAITS], ids=["trains", "waits"])
def test_no_alert_fires_while_whole_steps_are_within_bounds(
    shares: Shares, step_s: float, tmp_path: Path
) -> None:
    """Whatever part of a step the window cuts off, at no moment of three hours does any alert fire."""
    assert "SUCCESS" in said_of(shares, step_s, tmp_path)


@pytest.mark.slow
@needs("prometheus", "promtool")
@pytest.mark.parametrize("step_s", LENGTHS_S)
@pytest.mark.parametrize("alert", BEYOND)
def test_each_share_beyond_its_bound_fires_its_own_alert(alert: str, step_s: float, tmp_path: Path) -> None:
    """For steps of the same lengths the alert fires that is about this share, and no other."""
    said = said_of(BEYOND[alert], step_s, tmp_path)
    assert said.count("alertname=") == 1
    assert f'alertname="{alert}"' in said.replace("\\", "")


def test_the_straggler_reads_the_last_bucket_that_the_run_exports() -> None:
    """The rule names the bound beyond which a quantile says nothing; it is the catalogue's last."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    (expr,) = (
        rule["expr"] for group in groups for rule in group["rules"] if rule["alert"] == "RLRolloutStraggler"
    )
    last = f"{ENVIRONMENT_BOUNDS_S[-1]:.0f}"
    assert f'le=~"{last}|{last}[.]0"' in expr
