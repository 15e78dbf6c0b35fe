"""The story of a trajectory or a group as lines for a person."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click

from ...events.trajectory import TrajectoryPayload, Turn, float32_list, int32_list
from ...events.types import (
    TRAJECTORY_PARTS,
    GroupDiscarded,
    GroupEvicted,
    GroupFailed,
    GroupFiltered,
    TrajectoryCompleted,
    part_seconds,
)
from .event_line import spans_text
from .quantities import number, seconds, table
from .story import AttemptStory, GroupStory, TrajectoryStory

IDS_SHOWN = 24
"""Token ids of one turn that are printed unless all are asked for."""


def trajectory_lines(
    story: TrajectoryStory, payload: TrajectoryPayload | None, *, all_tokens: bool = False
) -> list[str]:
    """Return everything about one trajectory; `payload` is None while it is not complete."""
    done = story.completed
    rows = [("trajectory", click.style(story.trajectory, bold=True))]
    if story.group is not None:
        rows += _group_rows(story.group)
    if done is not None:
        rows += _completed_rows(done, story.group)
    rows += [("attempt" if i == 0 else "", _attempt_text(a)) for i, a in enumerate(story.attempts)]
    if story.dropped is not None:
        rows.append(("dropped", "its group went on without it, after the last of its attempts"))
    lines = _labelled(rows)
    if payload is None:
        return [*lines, "", "It is not complete, so there is no text to show."]
    for role, content in payload.opening:
        lines += ["", *_message(role, content)]
    ids, versions = int32_list(payload.tokens), int32_list(payload.versions)
    for index, turn in enumerate(payload.turns):
        lines += ["", *_turn_lines(index, turn, ids, versions)]
    if all_tokens:
        lines += ["", *_token_table(payload)]
    return lines


def group_lines(group: GroupStory) -> list[str]:
    """Return what became of a group, and one line per trajectory."""
    lines = _labelled(_group_rows(group))
    rows = [("trajectory", "reward", "turns", "tokens", "versions", "time", "attempts", "ended")]
    for name, story in sorted(group.trajectories.items(), key=lambda item: int(item[0].split("/")[1])):
        done = story.completed
        tries = str(len(story.attempts))
        if done is None:
            last = story.attempts[-1] if story.attempts else None
            ended: str = (
                last.failure.failure if last is not None and last.failure is not None else "in flight"
            )
            if story.dropped is not None:
                ended = f"dropped: {ended}"
            rows.append((name, "-", "-", "-", "-", "-", tries, ended))
            continue
        rows.append(
            (
                name,
                number(done.reward),
                str(done.turns),
                str(done.completion_tokens),
                spans_text(done.version_spans),
                seconds(_wall(done)),
                tries,
                done.stop_reason,
            )
        )
    return [*lines, "", *table(rows, right=(1, 2, 3, 5, 6))]


def _group_rows(group: GroupStory) -> list[tuple[str, str]]:
    sent = group.dispatched
    dropped = sum(story.dropped is not None for story in group.trajectories.values())
    count = f"{sent.size} trajectories" + (f", {dropped} dropped" if dropped else "")
    where = f"prompt {sent.prompt}, meant for step {sent.target}, dispatched at version {sent.version}"
    return [
        ("group", f"{group.group} ({count}), {where} (seq {group.dispatched_seq})"),
        ("became", _fate(group)),
    ]


def _fate(group: GroupStory) -> str:
    match group.ended:
        case GroupFailed() as ended:
            return f"failed: {ended.failure}, blamed on {ended.blame}: {ended.message}"
        case GroupFiltered() as ended:
            return f"filtered: {ended.reason} (mean reward {number(ended.reward_mean)})"
        case GroupEvicted() as ended:
            return f"evicted at lag {ended.lag}"
        case GroupDiscarded() as ended:
            return f"discarded: {ended.reason}"
    if group.taken_step is not None:
        verb = "trained" if group.trained is not None else "in training"
        return f"{verb} in step {group.taken_step}, lag {group.lag}"
    return "buffered, not yet trained" if group.buffered is not None else "in flight"


def _completed_rows(done: TrajectoryCompleted, group: GroupStory | None) -> list[tuple[str, str]]:
    reward = number(done.reward)
    if group is not None and group.buffered is not None:
        difference = done.reward - group.buffered.reward_mean
        reward += f" ({difference:+.4g} against its group's mean {number(group.buffered.reward_mean)})"
    parts = [
        (part.replace("_", " "), spent)
        for part, spent in zip(TRAJECTORY_PARTS, part_seconds(done), strict=True)
        if spent > 0
    ]
    times = " + ".join(f"{name} {seconds(spent)}" for name, spent in parts)
    return [
        ("reward", reward),
        ("ended", f"{done.stop_reason} after {done.turns} {'turn' if done.turns == 1 else 'turns'}"),
        (
            "tokens",
            f"{done.prompt_tokens} read + {done.completion_tokens} sampled ({spans_text(done.version_spans)})",
        ),
        ("time", f"{seconds(_wall(done))} = {times}" if parts else seconds(_wall(done))),
    ]


def _attempt_text(attempt: AttemptStory) -> str:
    took = "" if attempt.seconds is None else f" after {seconds(attempt.seconds)}"
    failure = attempt.failure
    if failure is not None:
        again = "retryable" if failure.retryable else "final"
        return (
            f"{attempt.attempt} failed{took}: {failure.failure} ({again}, blamed on {failure.blame}): "
            f"{failure.message}"
        )
    return f"{attempt.attempt} {'goes on' if attempt.ended is None else 'completed' + took}"


def _turn_lines(index: int, turn: Turn, ids: Sequence[int], versions: Sequence[int]) -> list[str]:
    times = f"queue {seconds(turn.queue_s)}, llm {seconds(turn.llm_s)}, env {seconds(turn.env_s)}"
    tokens = "1 token" if turn.length == 1 else f"{turn.length} tokens"
    head = f"turn {index}: policy, {tokens}, {turn.finish_reason}; {times}"
    lines = [click.style(head, fg="cyan"), *_indented(turn.text)]
    place = slice(turn.start, turn.start + turn.length)
    lines.append(click.style("  ids " + _ids_text(ids[place], versions[place]), dim=True))
    for role, content in turn.messages:
        lines += _message(role, content)
    return lines


def _ids_text(ids: Sequence[int], versions: Sequence[int]) -> str:
    shown = list(zip(versions, ids, strict=True))[:IDS_SHOWN]
    runs = [
        f"v{version}: {' '.join(str(token) for _, token in run)}"
        for version, run in groupby(shown, key=lambda pair: pair[0])
    ]
    more = f" ... {len(ids) - IDS_SHOWN} more" if len(ids) > IDS_SHOWN else ""
    return " | ".join(runs) + more


def _token_table(payload: TrajectoryPayload) -> list[str]:
    rows = [("position", "id", "by", "version", "log-prob")]
    columns = zip(
        int32_list(payload.tokens),
        payload.sampled,
        int32_list(payload.versions),
        float32_list(payload.logprobs),
        strict=True,
    )
    for position, (token, sampled, version, logprob) in enumerate(columns):
        tail = ("policy", str(version), f"{logprob:.4f}") if sampled else ("environment", "", "")
        rows.append((str(position), str(token), *tail))
    return table(rows, right=(0, 1, 3, 4))


def _message(role: str, content: str) -> list[str]:
    return [click.style(role, fg="yellow"), *_indented(content)]


def _indented(text: str) -> list[str]:
    """Return the text's lines, indented; what a terminal could take for a command is escaped."""
    safe = "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)
    return [f"  {line}" for line in safe.split("\n")]


def _wall(done: TrajectoryCompleted) -> float:
    return sum(part_seconds(done))


def _labelled(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(label) for label, _ in rows)
    return [f"{click.style(label.ljust(width), dim=True)}  {text}" for label, text in rows]
