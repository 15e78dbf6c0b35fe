"""The law of a token's age: what a step trains and what it masks, counted from the tokens' versions.

With the policy `token_windowed` step k masks exactly the sampled tokens of versions before ``k - max_staleness`` and
trains all others; with any other policy it masks none. The versions are those that the trajectories brought along
when they were complete, so a token is judged by what its engine said of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ...events.types import (
    BatchTaken,
    Event,
    GroupDiscarded,
    GroupDispatched,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    GroupRestored,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepStarted,
    TrajectoryCompleted,
)

AGED = {
    RunStarted,
    RunResumed,
    GroupDispatched,
    TrajectoryCompleted,
    GroupFiltered,
    GroupFailed,
    GroupDiscarded,
    GroupEvicted,
    GroupRestored,
    BatchTaken,
    StepStarted,
    StepCompleted,
}
"""Events that `TokenAge.breach` reads; on all others it need not be asked."""


@dataclass
class TokenAge:
    """The sampled tokens of every live group by version, and which of them the step that runs may train."""

    staleness: int | None = None
    """Bound on the age of a trained token; None where the policy bounds groups."""
    _tokens: dict[int, Counter[int]] = field(default_factory=dict)
    _taken: tuple[int, ...] = ()

    def breach(self, event: Event) -> tuple[str, str] | None:
        """Enter `event`; return what was expected and what was found if its counts break the law."""
        match event:
            case RunStarted() | RunResumed():
                if event.config is None:
                    return None
                scheduler = event.config.get("scheduler", {})
                by_token = scheduler.get("policy") == "token_windowed"
                self.staleness = scheduler.get("max_staleness") if by_token else None
            case GroupDispatched():
                self._tokens[event.group] = Counter()
            case TrajectoryCompleted() if event.group in self._tokens:
                for version, count in event.version_spans:
                    self._tokens[event.group][version] += count
            case GroupRestored():
                spans = [span for one in event.trajectories for span in one.version_spans]
                self._tokens[event.group] = Counter()
                for version, count in spans:
                    self._tokens[event.group][version] += count
            case GroupFiltered() | GroupFailed() | GroupDiscarded() | GroupEvicted():
                self._tokens.pop(event.group, None)
            case BatchTaken():
                self._taken = event.groups
                return self._spent(event)
            case StepStarted():
                return self._counts(event)
            case StepCompleted():
                found = self._counts(event)
                for group in self._taken:
                    self._tokens.pop(group, None)
                self._taken = ()
                return found
        return None

    def _oldest(self, step: int) -> int:
        return 0 if self.staleness is None else max(0, step - self.staleness)

    def _spent(self, event: BatchTaken) -> tuple[str, str] | None:
        """Check that every group of a batch has a token that the step may train, if it has any."""
        oldest = self._oldest(event.step)
        for group in event.groups:
            tokens = self._tokens.get(group)
            if tokens and max(tokens) < oldest:
                found = f"group {group} has none newer than version {max(tokens)} for step {event.step}"
                return f"a token of version {oldest} or newer in every group", found
        return None

    def _counts(self, event: StepStarted | StepCompleted) -> tuple[str, str] | None:
        if self.staleness is None and not event.trained_tokens and not event.masked_tokens:
            return None  # logs of before these counts have none
        oldest = self._oldest(event.step)
        tokens = sum((self._tokens.get(group, Counter()) for group in self._taken), Counter[int]())
        masked = sum(count for version, count in tokens.items() if version < oldest)
        trained = tokens.total() - masked
        if (event.trained_tokens, event.masked_tokens) == (trained, masked):
            return None
        return (
            f"{trained} tokens of versions from {oldest} on trained and {masked} masked",
            f"{event.trained_tokens} and {event.masked_tokens} in step {event.step}",
        )
