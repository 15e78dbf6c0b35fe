"""What engines that count for themselves said of their load, and how the updates of their weights went."""

from __future__ import annotations

from collections import Counter

from ....core.projections.fold import on
from ....events.record import Record
from ....events.types import EngineSampled, SyncRetried
from .engines import ENGINES_MAX
from .part import Part
from .snapshot import Snapshot

COUNTED = ("preemptions", "prompt_tokens", "cached_tokens", "sampled_tokens")
"""What an engine counts from its start on."""


class EngineLoad(Part):
    """The last sample of each engine, and its counts over all of its lives: an engine that is restarted begins at 0."""

    def __init__(self) -> None:
        self._last: dict[str, EngineSampled] = {}
        self._totals: dict[str, Counter[str]] = {}
        self._retries = 0

    def interrupted(self, at_ns: int) -> None:
        """Forget what the engines do; what they have done stays."""
        self._last.clear()

    @on(EngineSampled)
    def _sampled(self, record: Record, event: EngineSampled) -> None:
        last = self._last.get(event.engine)
        totals = self._totals.setdefault(event.engine, Counter())
        for name in COUNTED:
            now, before = getattr(event, name), getattr(last, name) if last is not None else 0
            totals[name] += now - before if now >= before else now
        self._last[event.engine] = event

    @on(SyncRetried)
    def _retried(self, record: Record, event: SyncRetried) -> None:
        self._retries += 1

    def report(self, into: Snapshot, now_ns: int) -> None:
        """Write the load of each engine."""
        into.set("rl_weight_sync_retries_total", self._retries)
        for name, last in list(self._last.items())[:ENGINES_MAX]:
            into.set("rl_engine_requests", last.running, name, "running")
            into.set("rl_engine_requests", last.waiting, name, "waiting")
            into.set("rl_engine_kv_cache_usage_ratio", last.kv_used, name)
        for name, totals in list(self._totals.items())[:ENGINES_MAX]:
            into.set("rl_engine_preemptions_total", totals["preemptions"], name)
            for kind in ("prompt", "cached", "sampled"):
                into.set("rl_engine_tokens_total", totals[f"{kind}_tokens"], name, kind)
