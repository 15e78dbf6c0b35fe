"""The live view under its keys: what it shows is what the other commands say of the same point."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot

from eventrain.adapters.cli.main import commands
from eventrain.adapters.cli.points import Point, Seq
from eventrain.adapters.top.app import Top
from eventrain.adapters.top.reading import Picture
from eventrain.adapters.top.screens import Ask, Help, Told
from eventrain.adapters.top.widgets import Panel, Row
from eventrain.events.folder import RunFolder
from eventrain.events.record import Record

DEADLINE_S = 30


def said(*arguments: str | Path) -> str:
    result = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


class Hand:
    """Somebody at the keyboard of an app."""

    def __init__(self, app: Top, pilot: Pilot[object]) -> None:
        self.app, self._pilot = app, pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not holds():
            assert time.monotonic() < deadline, self.text()
            await self._pilot.pause(0.01)

    async def at(self, seq: int) -> Picture:
        await self.until(
            lambda: self.app.board.picture is not None and self.app.board.picture.shown.seq == seq
        )
        assert self.app.board.picture is not None
        return self.app.board.picture

    async def told(self, words: str) -> list[str]:
        await self.until(
            lambda: isinstance(self.app.screen, Told) and words in "\n".join(self.app.screen.lines.plain)
        )
        assert isinstance(self.app.screen, Told)
        return self.app.screen.lines.plain

    def row(self, name: str) -> str:
        return self.app.board.query_one(f"#{name}", Row).plain

    def text(self) -> str:
        """Return the screen as it is drawn."""
        rows = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in row) for row in rows)


def play(
    folder: RunFolder,
    use: Callable[[Hand], Awaitable[None]],
    *,
    size: tuple[int, int] = (100, 30),
    at: Point | None = None,
) -> Top:
    async def go() -> Top:
        app = Top(folder, at=at, interval_s=0.02)
        async with app.run_test(size=size) as pilot:
            hand = Hand(app, pilot)
            await use(hand)
        return app

    return asyncio.run(go())


def test_the_slider_moves_to_the_states_that_replay_shows(busy, write_log) -> None:
    """After each key, step, phase, groups and buffer are those of `eventrain replay --at` that seq."""
    folder, last = write_log(busy), busy[-1].seq
    part = last // 100

    async def use(hand: Hand) -> None:
        await hand.at(last)
        for key, seq in (
            ("left", last - part),
            ("shift+left", last - 11 * part),
            ("comma", last - 11 * part - 1),
            ("right", last - 10 * part - 1),
            ("full_stop", last - 10 * part),
            ("home", 0),
            ("shift+right", 10 * part),
        ):
            await hand.press(key)
            now = (await hand.at(seq)).shown
            table = json.loads(said("replay", folder.path, "--at", str(seq), "--json"))
            assert (now.step, now.phase, now.buffered) == (
                table["version"],
                table["phase"],
                len(table["buffer"]),
            )
            assert [(g.group, g.completed) for g in now.groups] == [
                (g["group"], g["completed"]) for g in table["in_flight"]
            ]
            assert now.phase_for_s == pytest.approx(table["phase_for_s"], abs=0.001)
            assert f"seq {seq}" in hand.row("foot")
            assert "past" in hand.row("slider")
        await hand.press("end")
        await hand.until(lambda: "end" in hand.row("slider").split())

    play(folder, use)


def test_keys_that_come_faster_than_the_states_add_up(busy, write_log) -> None:
    """The slider counts every press, and only the last state has to be made."""
    last = busy[-1].seq

    async def use(hand: Hand) -> None:
        await hand.at(last)
        await hand.press(*["comma"] * 25)
        await hand.at(last - 25)

    play(write_log(busy), use)


def test_a_group_and_its_trajectory_open_as_show_prints_them(stalled, write_log) -> None:
    """Enter on the panel opens what the cursor stands on, and Enter again a trajectory of it; Escape goes back."""
    folder = write_log(stalled)

    async def use(hand: Hand) -> None:
        now = (await hand.at(700)).shown
        group = now.groups[1].group
        await hand.press("down", "enter")
        lines = await hand.told("became")
        assert lines == said("show", folder.path, str(group)).splitlines()
        await hand.press("down", "enter")
        await hand.until(lambda: len(hand.app.screen_stack) == 4)
        assert str(hand.app.screen.query_one(Panel).border_title) == f"trajectory {group}/1"
        await hand.press("escape", "escape")
        await hand.until(lambda: hand.app.screen is hand.app.board)

    play(folder, use, at=Seq(700))


@pytest.mark.slow
def test_an_id_or_a_point_is_typed(stalled, write_log) -> None:
    """A group opens, a point is gone to, and anything else is refused with what would be right."""
    folder = write_log(stalled)

    async def ask(hand: Hand, words: str) -> None:
        await hand.press("slash")
        await hand.until(lambda: isinstance(hand.app.screen, Ask))
        await hand.press(*("slash" if c == "/" else "at" if c == "@" else c for c in words), "enter")

    async def use(hand: Hand) -> None:
        await hand.at(988)
        await ask(hand, "14")
        assert await hand.told("became") == said("show", folder.path, "14").splitlines()
        await hand.press("escape")
        await ask(hand, "@982")
        await hand.at(982)
        await ask(hand, "nonsense")
        await hand.until(lambda: "must be a trajectory" in hand.row("keys"))
        await ask(hand, "900")
        await hand.told("has no group 900; its groups go from 0 to")

    play(folder, use)


def test_stalls_are_listed_as_the_command_lists_them(stalled, write_log) -> None:
    """At the deadlock the board shows the verdict, and `s` all of them."""
    folder = write_log(stalled)

    async def use(hand: Hand) -> None:
        await hand.at(982)
        await hand.until(lambda: "deadlock" in hand.text())
        await hand.until(lambda: "prompt 13 failed, permanent: prompt too long" in hand.text())
        await hand.press("s")
        assert await hand.told("deadlock") == said("stalls", folder.path).splitlines()

    play(folder, use, at=Seq(982))


@pytest.mark.parametrize("size", [(80, 24), (100, 30), (120, 36), (160, 45)])
def test_it_is_whole_on_every_size_of_terminal(stalled, write_log, size: tuple[int, int]) -> None:
    """Phase, targets with the hole, chain, slider and keys are there from 80x24 on."""

    async def use(hand: Hand) -> None:
        await hand.at(982)
        for words in (
            "waiting for buffer",
            "step 3",
            "1 missing",
            "7/8",
            "deadlock",
            "target 3 short by 1",
            "q quit",
        ):
            await hand.until(lambda words=words: words in hand.text())

    play(write_log(stalled), use, size=size, at=Seq(982))


def test_it_follows_a_run_that_goes_on_and_says_when_it_is_gone(busy, growing) -> None:
    """Live while a process holds the lock, with each event that a real writer adds; gone without a last word then."""
    log = growing()
    log.append(busy[:200])

    async def use(hand: Hand) -> None:
        with log.folder.lock():
            await hand.at(199)
            await hand.until(lambda: "live" in hand.row("slider"))
            log.append(busy[200:500])
            await hand.at(499)
            assert "running" in hand.row("head")
            await hand.press("left")
            await hand.at(495)
            log.append(busy[500:510])
            await hand.until(lambda: "of 509" in hand.row("foot"))
            await hand.press("end")
            await hand.at(509)
        await hand.until(lambda: "gone" in hand.row("head"))
        log.close()

    play(log.folder, use)


def test_help_names_the_keys_and_tab_goes_from_panel_to_panel(busy, write_log) -> None:
    """All seven panels can be reached, and ? explains."""

    async def use(hand: Hand) -> None:
        await hand.at(busy[-1].seq)
        seen = set()
        for _ in range(7):
            assert hand.app.focused is not None
            seen.add(hand.app.focused.id)
            await hand.press("tab")
        assert len(seen) == 7
        await hand.press("question_mark")
        await hand.until(lambda: isinstance(hand.app.screen, Help))
        await hand.press("escape")
        await hand.until(lambda: hand.app.screen is hand.app.board)

    play(write_log(busy), use)


def test_space_plays_the_past_and_stops_it(busy, write_log) -> None:
    """It goes on from where it stands, faster with +, and stays where it is stopped."""

    async def use(hand: Hand) -> None:
        await hand.at(100)
        await hand.press("plus")
        await hand.until(lambda: "▶ 2x" in hand.row("slider"))
        await hand.until(
            lambda: hand.app.board.picture.shown.at_ns > 0 and hand.app.board.picture.shown.seq >= 100
        )
        await hand.press("space")
        await hand.until(lambda: "past" in hand.row("slider"))

    play(write_log(busy), use, at=Seq(100))


def test_q_quits_with_nothing_wrong(busy, write_log) -> None:
    """The app returns no failure, and its reader ends."""

    async def use(hand: Hand) -> None:
        await hand.at(busy[-1].seq)
        await hand.press("q")

    app = play(write_log(busy), use)
    assert app.return_value is None


def test_a_log_that_cannot_be_read_ends_it_with_that(busy, write_log) -> None:
    """The failure is what the command then prints in one line."""
    folder = write_log(busy[:100])
    max(folder.events.glob("*.zst")).write_bytes(b"something else")

    async def use(hand: Hand) -> None:
        await hand.until(lambda: hand.app.return_value is not None)

    app = play(folder, use)
    assert app.return_value is not None
    assert "log damaged" in app.return_value.lines[0]


def test_an_empty_log_says_that_it_is_waited_for(tmp_path: Path) -> None:
    """One line instead of panels full of nothing."""

    async def use(hand: Hand) -> None:
        await hand.until(lambda: "the run has not begun yet" in hand.row("head"))

    play(RunFolder.create(tmp_path / "run"), use)


def test_without_colours_the_parts_of_bars_differ(busy: list[Record], write_log, monkeypatch) -> None:
    """With NO_COLOR set, phases are told apart by their characters."""
    monkeypatch.setenv("NO_COLOR", "1")

    async def use(hand: Hand) -> None:
        await hand.at(busy[-1].seq)
        await hand.until(lambda: "▓" in hand.text())

    play(write_log(busy), use)
