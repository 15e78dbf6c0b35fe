"""Worlds at random: every law holds in all of them, and a planted defect is found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.judge import Broken, judge
from eventrain.adapters.simulated.scenario import Scenario, Surroundings
from eventrain.adapters.simulated.simulation import Simulated, simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.core.collector import Collector
from eventrain.core.config import SchedulerSection
from eventrain.core.failures import respond
from eventrain.core.policies.targeted import Targeted
from eventrain.core.projections.token_age import TokenAge
from eventrain.events.bus import Bus
from eventrain.events.codec import encode
from eventrain.events.types import Blocked, RunFailed, StepCompleted


def chaos(tape: Tape) -> Simulated:
    return simulate(draw_scenario(tape), tape)


def sound(seeds: range, *, killing: bool = False) -> Counter[str]:
    """Run chaos under every seed; return the faults that struck and how the runs ended."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        tape = Tape(seed)
        run = simulate(draw_scenario(tape), tape, killing=killing)
        broken = judge(run)
        command = f"eventrain simulate --chaos {'--resume ' if killing else ''}--seed {seed}"
        assert broken is None, f"{command}: {broken}"
        seen += run.struck
        seen[run.outcome] += 1
    return seen


def test_every_law_holds_in_sixty_worlds() -> None:
    """Nothing stalls, nothing is lost or trained twice, and every run ends as its faults allow."""
    seen = sound(range(60))
    assert {"completed", "failed", "interrupted", "data_exhausted"} <= set(seen)
    assert sum(1 for what in seen if " " in what) >= 20, "the worlds are too friendly"


def test_random_worlds_mask_tokens() -> None:
    """Where answers outlast many steps the policy that masks old tokens does, so the law of their age is tried."""
    masked = 0
    for seed in range(200):
        tape = Tape(seed)
        scenario = draw_scenario(tape)
        if scenario.config["scheduler"]["policy"] == "token_windowed":
            run = simulate(scenario, tape)
            assert judge(run) is None
            masked += sum(r.event.masked_tokens for r in run.records if isinstance(r.event, StepCompleted))
    assert masked > 20


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("killing", [False, True], ids=["fresh", "resumed"])
def test_every_law_holds_in_a_thousand_worlds(killing: bool) -> None:
    """The same with a thousand seeds, and with a thousand runs that are killed once and resumed."""
    sound(range(1000, 2000), killing=killing)


@pytest.mark.parametrize("seed", [3, 11, 29, 41])
def test_a_seed_gives_the_same_log_byte_for_byte(seed: int) -> None:
    """The same seed, and the tape that it recorded, give the same digest and the same encoded log."""
    first, second = chaos(Tape(seed)), chaos(Tape(seed))
    third = chaos(Tape(seed, first.choices))
    log = [encode(record) for record in first.records]
    assert [encode(record) for record in second.records] == log
    assert [encode(record) for record in third.records] == log
    assert first.digest == second.digest == third.digest


WHOLE_SYSTEM = """
from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
for seed in range(8):
    tape = Tape(seed)
    print(simulate(draw_scenario(tape), tape).digest)
"""


def test_the_whole_system_does_not_depend_on_the_hash_seed() -> None:
    """Three processes with different hash seeds, and so other orders of sets of strings, give the same logs."""
    said = set()
    for hash_seed in ("0", "1", "777"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", WHOLE_SYSTEM]
        said.add(subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout)
    (digests,) = said
    assert len(set(digests.split())) == 8


def test_another_seed_gives_another_schedule() -> None:
    """The digest tells schedules apart."""
    scenario = Scenario()
    assert len({simulate(scenario, Tape(seed)).digest for seed in range(5)}) == 5


def found(seeds: range) -> Broken:
    """Return the first law that chaos finds broken."""
    for seed in seeds:
        broken = judge(chaos(Tape(seed)))
        if broken is not None:
            return broken
    pytest.fail("no seed noticed")


def test_a_window_behind_the_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that fills only steps ahead of the version leaves holes, and then stalls."""

    def window(self: Targeted, view, config) -> range:
        version = view.engines.generation_version
        if version is None:
            return range(0)
        first = version + 1 if version else 0
        return range(first, min(version + config.scheduler.max_staleness, config.run.steps - 1) + 1)

    monkeypatch.setattr(Targeted, "window", window)
    assert found(range(40)).law == "never stalls"


def test_groups_that_are_forgotten_at_the_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that does not give back what was in flight loses prompts."""
    monkeypatch.setattr(Collector, "_discard_in_flight", lambda self: None)
    assert found(range(40)).law in ("ledger", "no prompt is lost")


def test_a_batch_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that reaches one step too far breaks the bound of the lag."""

    def window(self: Targeted, view, config) -> range:
        version = view.engines.generation_version
        if version is None:
            return range(0)
        last = min(version + config.scheduler.max_staleness + 1, config.run.steps - 1)
        return range(view.trainer.step, last + 1)

    monkeypatch.setattr(Targeted, "window", window)
    assert found(range(40)).law in ("ledger", "lag is bounded")


def test_a_floor_that_is_not_kept_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that drops one trajectory more than the floor allows trains groups that are too small."""

    def generous(failed, group, strikes, limits, spare=0):
        return respond(failed, group, strikes, limits, spare + 1)

    monkeypatch.setattr("eventrain.core.collector.respond", generous)
    assert found(range(40)).law == "ledger"


def test_a_token_that_is_too_old_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that masks one version too few trains stale tokens, and the log's own counts show it."""

    def oldest(self: SchedulerSection, step: int) -> int:
        return max(0, step - self.max_staleness - 1) if self.policy == "token_windowed" else 0

    monkeypatch.setattr(SchedulerSection, "oldest_trained", oldest)
    broken = found(range(200))
    assert broken.law == "ledger"
    assert "token age" in broken.how


def test_the_judge_counts_stale_tokens_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a ledger that is blind to them, the judge finds the same runs."""

    def oldest(self: SchedulerSection, step: int) -> int:
        return max(0, step - self.max_staleness - 1) if self.policy == "token_windowed" else 0

    monkeypatch.setattr(SchedulerSection, "oldest_trained", oldest)
    monkeypatch.setattr(TokenAge, "breach", lambda self, event: None)
    assert found(range(200)).law == "no stale token is trained"


def test_a_wakeup_that_gets_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bus that does not wake those who wait for the disk stalls, and the report names the wait."""

    def deaf(self: Bus, seq: int) -> None:
        self._saved = max(self._saved, seq)

    monkeypatch.setattr(Bus, "_on_durable", deaf)
    scenario = Scenario(config={"deadlines": {"durable_s": 1e6, "buffer_wait_s": 1e6}})
    run = simulate(scenario, Tape(0))
    assert any(isinstance(record.event, Blocked) and record.event.edge == "durable" for record in run.records)
    broken = judge(run)
    assert broken is not None


def test_the_durable_edges_are_waited_for() -> None:
    """With a slow disk the trainer waits for its intents to be saved; a full one ends the run with that cause."""
    slow = simulate(Scenario(world=Surroundings(commit_s=0.5)), Tape(1))
    assert judge(slow) is None
    waits = [r.event for r in slow.records if isinstance(r.event, Blocked) and r.event.edge == "durable"]
    assert len(waits) >= 6
    fault = {"where": "disk", "what": "full", "at_event": 300}
    expect = {"outcome": ("failed",), "error": ("LogWriteError",), "cause": "no space left on device"}
    full = simulate(Scenario.model_validate({"fault": [fault], "expect": expect}), Tape(1))
    assert judge(full) is None
    assert isinstance(full.records[-1].event, RunFailed)


def test_zeros_are_the_plain_world() -> None:
    """The tape of zeros draws a world without faults."""
    run = chaos(Tape(0, {}))
    assert judge(run) is None
    assert run.scenario.fault == ()
    assert not any(value for values in run.choices.values() for value in values)
    assert not run.struck
