"""The tokens of a trajectory: what the environment wrote, and what the policy sampled, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..events.trajectory import TrajectoryPayload, Turn, float32_bytes, int32_bytes
from ..events.types import VersionSpans
from .ports import Generation, Message


def append_spans(spans: list[tuple[int, int]], more: VersionSpans) -> None:
    """Append `more` to `spans`; what meets with the same version becomes one span."""
    for version, tokens in more:
        if spans and spans[-1][0] == version:
            spans[-1] = (version, spans[-1][1] + tokens)
        else:
            spans.append((version, tokens))


@dataclass(slots=True)
class Conversation:
    """The tokens of a trajectory so far. Sampled ids are kept as they were sampled."""

    ids: list[int] = field(default_factory=list)
    sampled: bytearray = field(default_factory=bytearray)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    def read(self, ids: list[int]) -> None:
        """Append tokens that the environment wrote."""
        self.ids += ids
        self.sampled += bytes(len(ids))
        self.logprobs += [0.0] * len(ids)
        self.versions += [-1] * len(ids)

    def write(self, generation: Generation) -> None:
        """Append tokens that the policy sampled."""
        self.ids += generation.token_ids
        self.sampled += b"\x01" * len(generation.token_ids)
        self.logprobs += generation.logprobs
        for version, tokens in generation.version_spans:
            self.versions += [version] * tokens
        append_spans(self.spans, generation.version_spans)

    def payload(self, opening: Sequence[Message], reward: float) -> TrajectoryPayload:
        """Return what is stored of it."""
        return TrajectoryPayload(
            tokens=int32_bytes(self.ids),
            sampled=bytes(self.sampled),
            logprobs=float32_bytes(self.logprobs),
            versions=int32_bytes(self.versions),
            opening=[(message.role, message.content) for message in opening],
            turns=self.turns,
            reward=reward,
        )


def joined(first: Generation, rest: Generation) -> Generation:
    """Return two parts of one answer as one."""
    spans = list(first.version_spans)
    append_spans(spans, rest.version_spans)
    return Generation(
        token_ids=[*first.token_ids, *rest.token_ids],
        logprobs=[*first.logprobs, *rest.logprobs],
        version_spans=tuple(spans),
        finish_reason=rest.finish_reason,
        queue_s=first.queue_s + rest.queue_s,
    )
