"""One time for all that draws a run on an axis: it never goes back, and is exact within a life of the run."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eventrain.adapters.telemetry.utc import UtcClock
from eventrain.events.record import Record
from eventrain.events.types import PhaseEntered, RunResumed

MOMENTS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-(10**6), 10**6), st.booleans()), min_size=1)


@given(MOMENTS)
def test_time_never_goes_back_and_is_exact_within_a_life(moments: list[tuple[int, int, bool]]) -> None:
    """Whatever the wall clock does, two events of one life are as far apart as on the monotonic clock."""
    clock, mono, before = UtcClock(), 0, None
    for seq, (passed, ahead, resumes) in enumerate(moments):
        mono += passed
        phase = PhaseEntered(phase="training", step=0)
        event = RunResumed(step=0, version=0) if resumes else phase
        record = Record(seq, 10**9 + mono + ahead, mono, "run", None, "", event)
        now = clock.advance(record)
        assert now == clock.now
        if before is not None:
            assert now >= before
            assert resumes or now - before == passed
        if resumes:
            assert now == clock.since == max(record.ts, before or 0)
        before = now
