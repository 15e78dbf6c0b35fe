"""What stands in a trace is what the log says, of any log; and any trace is one that Perfetto can show."""

from __future__ import annotations

import hashlib
import io

import pytest
from golden_runs import GOLDEN
from perfetto_laws import check_laws, exported
from perfetto_traces import ReadTrace
from told_runs import ToldRun, phased_run

from eventrain.adapters.simulated.chaos import draw_scenario
from eventrain.adapters.simulated.simulation import simulate
from eventrain.adapters.simulated.tape import Tape
from eventrain.adapters.telemetry.perfetto.export import TraceExport
from eventrain.events.reader import LogReader
from eventrain.events.record import Record
from eventrain.events.types import (
    BatchTaken,
    Blocked,
    EngineLost,
    EngineUp,
    EnvStepStarted,
    GroupRestored,
    LlmCallStarted,
    PhaseEntered,
    RunResumed,
    StallCleared,
    StallDetected,
    StepCompleted,
    StepStarted,
    SyncAcknowledged,
    SyncRetried,
    SyncStarted,
    SyncVerified,
    TrajectoryFailed,
    Unblocked,
)

GOLDEN_DIGEST = "ba669f98d41bed30ca33f035ca3ca1025bd3d27dae50a9457646034688d6668e"
"""Of the trace of tests/golden/run_0_1. When it changes, users see something else: look at it, then enter it."""


def golden() -> list[Record]:
    """Return the log with a little of everything: retries, evictions, a lost engine, a kill and a resume."""
    return list(LogReader(GOLDEN / "run_0_1" / "events").records())


def test_the_golden_run() -> None:
    """The laws hold for a run with a little of everything, killed and resumed."""
    trace = check_laws(golden())
    assert {one.name for one in trace.instants if one.lane == "buffer/groups"} >= {
        "group filtered", "group failed", "group evicted", "group discarded", "group restored",
    }  # fmt: skip
    assert [one.name for one in trace.instants if one.lane == "run"] == [
        "run started", "run resumed", "run finished",
    ]  # fmt: skip
    assert [one.told["failure"] for one in trace.instants if one.lane == "health/quarantines"]
    interrupted = [one for one in trace.slices if one.told.get("interrupted")]
    assert any(one.name == "trajectory" for one in interrupted), "nothing was cut by the kill"


def test_engines_stand_in_the_order_of_their_numbers() -> None:
    """Whichever comes up first, the first engine is shown first."""
    told = ToldRun()
    told.begin(engines=0)
    for number in (10, 2, 0):
        up = EngineUp(engine=f"engine-{number}", version=0, context_tokens=96, slots=8)
        told.publish("engine_pool", up)
    shown = ReadTrace(exported(told.records)).order()
    assert [lane for lane in shown if lane.startswith("engines/") and "calls" not in lane] == [
        "engines/engine-0", "engines/engine-2", "engines/engine-10",
    ]  # fmt: skip


def test_the_same_log_gives_the_same_bytes() -> None:
    """Two exports are equal, and equal to the one that was looked at."""
    trace = exported(golden())
    assert exported(golden()) == trace
    assert hashlib.sha256(trace).hexdigest() == GOLDEN_DIGEST


@pytest.mark.parametrize("upto", [1, 2, 3, 7, 20, *range(50, 1871, 130)])
def test_a_log_that_ends_anywhere(upto: int) -> None:
    """A live or a crashed run's trace is sound: what is open ends with the log and says so."""
    records = golden()[:upto]
    trace = check_laws(records)
    end = max(one.end for one in trace.slices)
    marked = [one for one in trace.slices if one.told.get("open")]
    assert all(one.end == end for one in marked)
    assert any(one.lane == "trainer/phases" for one in marked)


@pytest.mark.parametrize("killing", [False, True])
def test_worlds_at_random(killing: bool) -> None:
    """The laws hold whatever fails, also across a kill and a resume."""
    for seed in range(12):
        tape = Tape(seed)
        run = simulate(draw_scenario(tape), tape, killing=killing)
        check_laws(run.records)


def test_the_lanes_of_a_told_run() -> None:
    """Lanes stand in the order of the story: what is trained, with which weights, by which engines, from what."""
    trace = check_laws(phased_run(3).records)
    assert trace.process == "told-20260101-120000"
    assert trace.order() == [
        "run",
        "trainer", "trainer/phases", "trainer/steps", "trainer/waits",
        "weights", "weights/weight version", "weights/engine-0 serves version", "weights/engine-0 sync",
        "engines", "engines/engine-0", "engines/engine-0 calls in flight",
        "devices", "devices/cuda:0 (learner)", "devices/cuda:1 (engine)",
        "buffer", "buffer/buffer depth", "buffer/buffer capacity", "buffer/groups in flight", "buffer/groups",
        "health",
        "rollouts", "rollouts/in flight without a lane",
        *(f"rollouts/slot {number}" for number in range(1, 9)),
    ]  # fmt: skip
    (first, *_) = trace.on("trainer/steps")
    assert first.seconds == pytest.approx(9.0)
    assert (first.told["step"], first.told["loss"], first.told["lag_max"]) == (0, 0.5, 0)
    assert first.told["metrics.kl"] == 0.01
    (wait, *_) = trace.on("trainer/waits")
    assert (wait.name, wait.told["awaited"]) == ("buffer_ready", "step 0: 2 groups")
    assert not any("open" in one.told for one in trace.slices)


def test_an_arrow_leads_from_each_step_to_the_sync_of_its_weights() -> None:
    """The engine's weight sync is where the arrow of the step arrives that made the weights."""
    trace = ReadTrace(exported(phased_run(3).records))
    syncs = trace.on("weights/engine-0 sync")
    assert [one.told["version"] for one in syncs] == [1, 2, 3]
    sources = [trace.source(flow) for one in syncs for flow in one.arrives]
    assert [one.told["step"] for one in sources] == [0, 1, 2]
    assert {one.lane for one in sources} == {"trainer/steps"}


def test_an_arrow_of_a_step_leads_to_no_sync_of_other_weights() -> None:
    """An engine that takes older weights after the step gets no arrow from it."""
    told = ToldRun()
    told.begin(engines=2)
    told.publish("trainer", BatchTaken(step=0, groups=()))
    told.publish("trainer", StepStarted(step=0, version=0, groups=0, trajectories=0, tokens=0))
    told.after(1.0).publish(
        "trainer", StepCompleted(step=0, version=1, loss=0.0, reward_mean=0.0, lag_mean=0.0, lag_max=0)
    )
    for engine, version in (("engine-0", 0), ("engine-1", 1)):
        told.publish("engine_pool", SyncStarted(engine=engine, version=version, mode="in_flight"))
    trace = ReadTrace(exported(told.records))
    assert [len(one.arrives) for one in trace.below("weights")] == [0, 1]


def test_a_sync_is_marked_where_it_is_tried_again_and_verified() -> None:
    """What happens within a weight sync stands on its lane; what belongs to no open sync stands nowhere."""
    told = ToldRun()
    told.begin()
    verified = SyncVerified(engine="engine-0", version=1, tensors=3, digest="d1", size_bytes=48, seconds=0.2)
    told.publish("weight_sync", verified)
    told.publish("weight_sync", SyncStarted(engine="engine-0", version=1, mode="pause"))
    retried = SyncRetried(engine="engine-0", version=1, attempt=1, message="connection reset")
    told.after(0.1).publish("weight_sync", retried)
    told.after(0.1).publish("weight_sync", verified)
    told.publish("weight_sync", SyncAcknowledged(engine="engine-0", version=1, seconds=0.2))
    marks = [one for one in check_laws(told.records).instants if one.lane == "weights/engine-0 sync"]
    assert [(one.name, one.told) for one in marks] == [
        ("tried again", {"attempt": 1, "message": "connection reset"}),
        ("verified", {"tensors": 3, "size_bytes": 48, "digest": "d1"}),
    ]


def test_groups_that_were_taken_and_not_trained_keep_their_arrows() -> None:
    """Where a kill came between batch and step, the group is trained later, with the arrows of its trajectories."""
    told = ToldRun()
    told.begin()
    told.dispatch(0, target=0, version=0)
    told.complete(0, 0, 0, llm_s=1.0, env_s=0.5)
    last = told.publish("trainer", BatchTaken(step=0, groups=(0,)))
    told.publish("run", RunResumed(step=0, version=0, restored=1, last_mono=last.mono))
    restored = {"prompt": 0, "index": 0, "target": 0, "version": 0, "size": 2, "step": 0, "trajectories": ()}
    told.publish("run", GroupRestored(group=0, **restored))
    for _ in range(2):
        told.publish("trainer", BatchTaken(step=0, groups=(0,)))
        told.publish("trainer", StepStarted(step=0, version=0, groups=1, trajectories=2, tokens=8))
        last = told.after(1.0).publish("trainer", PhaseEntered(phase="eval", step=0))
        told.publish("run", RunResumed(step=0, version=0, restored=1, last_mono=last.mono))
        told.publish("run", GroupRestored(group=0, **restored))
    trace = check_laws(told.records)
    first, again = trace.on("trainer/steps")
    assert [trace.source(flow).name for flow in first.arrives] == ["trajectory", "trajectory"]
    assert [trace.source(flow).name for flow in again.arrives] == ["group restored"]


def test_a_turn_holds_its_calls() -> None:
    """A call that is made again is a second slice of its turn; a failure in the midst of one ends it, and is marked."""
    told = ToldRun()
    told.begin()
    told.dispatch(0, target=0, version=0, size=1)
    ask = LlmCallStarted(trajectory="0/0", turn=0, engine="engine-0", prompt_tokens=3, max_tokens=8)
    env = EnvStepStarted(trajectory="0/0", turn=0)
    for event in (ask, ask, env, ask.model_copy(update={"turn": 1})):
        told.publish("rollout", event)
        told.after(1.0)
    failure = TrajectoryFailed(
        trajectory="0/0", group=0, attempt=0, failure="engine_lost", retryable=True, blame="engine", message="gone"
    )
    told.publish("rollout", failure)
    trace = ReadTrace(exported(told.records))
    assert [(one.depth, one.name, one.seconds) for one in trace.below("rollouts")] == [
        (0, "trajectory", 4.0),
        (1, "turn", 3.0), (2, "chat", 1.0), (2, "chat", 1.0), (2, "env step", 1.0),
        (1, "turn", 1.0), (2, "chat", 1.0),
    ]  # fmt: skip
    (mark,) = [one for one in trace.instants if one.lane == "rollouts/slot 1"]
    assert (mark.name, mark.depth) == ("failed: engine_lost", 1)
    (whole, *_) = trace.below("rollouts")
    assert (whole.told["outcome"], whole.told["blame"]) == ("failed", "engine")


def test_a_device_sample_is_drawn_over_its_window() -> None:
    """During training the learner's counter is what it was during training, not what the last sample before it said."""
    trace = ReadTrace(exported(phased_run(2).records))
    for one in trace.on("trainer/phases"):
        if one.name == "training":
            for time in (one.begin, (one.begin + one.end) // 2, one.end - 1):
                assert trace.at("devices/cuda:0 (learner)", time) == pytest.approx(92.0)


def crowd(groups: int) -> list[Record]:
    """Tell a run with twice as many trajectories in flight at the same time as `groups`."""
    told = ToldRun()
    told.begin()
    for group in range(groups):
        told.after(0.001).dispatch(group, target=0, version=0)
    for group in range(groups):
        told.complete(group, 0, 0, llm_s=0.01, env_s=0.01)
    return told.records


def test_five_hundred_attempts_at_the_same_time() -> None:
    """Each has a lane of its own, and the lanes are used again from the lowest on."""
    records = [*crowd(250)]
    trace = check_laws(records)
    slots = [lane for lane in trace.lanes.values() if lane.startswith("rollouts/slot ")]
    assert len(slots) == 500


def test_more_attempts_than_lanes_are_counted() -> None:
    """With fewer lanes the rest stands in a counter, which is zero again when they have ended."""
    records = crowd(250)
    trace = ReadTrace(exported(records, slots_max=100))
    samples = [value for _, value in trace.counters["rollouts/in flight without a lane"]]
    assert max(samples) == 400
    assert samples[-1] == 0
    assert len({one.lane for one in trace.below("rollouts")}) == 100
    export = TraceExport(io.BytesIO(), records[0], slots_max=0)
    export.write(records)
    assert export.left_out == 500


def test_a_stall_is_a_slice_with_its_chain() -> None:
    """It lasts from the moment it was seen to the one that ended it, and says who waits for whom."""
    told = ToldRun()
    told.begin()
    chain = ("trainer waits for buffer_ready", "no engine serves")
    stall = StallDetected(stall=0, stall_kind="deadlock", chain=chain, sentence="nobody can move")
    told.after(2.0).publish("watchdog", stall)
    told.publish("engine_pool", EngineLost(engine="engine-0", message="gone"))
    told.after(3.0).publish("watchdog", StallCleared(stall=0, by=1, seconds=3.0))
    told.publish("watchdog", stall.model_copy(update={"stall": 1}))
    trace = ReadTrace(exported(told.after(1.0).records))
    cleared, standing = trace.on("health/stalls")
    assert (cleared.name, cleared.seconds) == ("stall: deadlock", 3.0)
    assert cleared.told["chain"] == list(chain)
    assert "open" not in cleared.told
    assert standing.told["open"] is True
    assert [one.name for one in trace.on("engines/engine-0")] == ["serving", "lost"]


def test_a_fork_says_so() -> None:
    """A fork's trace begins with what it has of the other run, marks where it left it, and has the fork's own id."""
    told = ToldRun()
    told.begin()
    forked = RunResumed(step=0, version=0, last_mono=told.records[-1].mono, forked_from="runs/other")
    told.after(60.0).publish("run", forked)
    trace = check_laws(told.records)
    assert trace.process == "told-20260101-120100"
    marks = [(one.name, one.told.get("forked_from")) for one in trace.instants if one.lane == "run"]
    assert marks == [("run started", None), ("run forked", "runs/other")]


def test_waits_that_overlap_have_lanes_of_their_own() -> None:
    """A slice never lies half within another, and the lower lane is used again."""
    told = ToldRun()
    told.begin()
    seqs = []
    for edge, awaited in (("permit", "a"), ("durable", "b")):
        blocked = Blocked(waiter="trainer", edge=edge, awaited=awaited, present="")
        seqs.append(told.after(1.0).publish("trainer", blocked).seq)
    for seq, edge in zip(seqs, ("permit", "durable"), strict=True):
        freed = Unblocked(waiter="trainer", edge=edge, blocked=seq, outcome="ready", seconds=2.0)
        told.after(1.0).publish("trainer", freed)
    told.publish("trainer", Blocked(waiter="trainer", edge="version", awaited="c", present=""))
    told.publish("collector", Blocked(waiter="collector", edge="work", awaited="d", present=""))
    trace = check_laws(told.records)
    waits = [(one.lane, one.name, one.seconds) for one in trace.slices if "waits" in one.lane]
    assert waits == [
        ("trainer/waits", "permit", 2.0),
        ("trainer/waits 2", "durable", 2.0),
        ("trainer/waits", "version", 0.0),
    ]
