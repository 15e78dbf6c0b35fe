"""Carry out a run for the command line: folder, wiring, signals, what is shown, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from ...core.config import RunConfig
from ...core.failures import first_leaf
from ...core.ports import Ports
from ...core.reconfiguration import refused
from ...core.resume import Past
from ...core.run import Run, RunOutcome
from ...events.bus import Bus
from ...events.errors import LogDamaged
from ...events.folder import RunFolder
from ...events.log import LogWriter
from ...events.payload import PayloadStore
from ...events.reader import TornTail, cut_torn_tail
from ...events.record import Record
from ...events.types import Event
from ..artifacts import forget_weights
from ..garbage import settle
from ..launching import Launcher, LauncherRefused, LocalLauncher
from ..simulated.foresight import refusal
from .config_file import changed_config
from .failures import EXIT_DATA_EXHAUSTED, EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, BadInput, CommandFailed
from .program import program
from .resuming import opening_of, past_of, resumed_lines
from .screen import Screen

LAST_LINES_S = 2.0
"""How long the screen may take to show the last events of a run that has ended."""

TELEMETRY_MORE_S = 2.0
"""What the telemetry gets on top of its own deadline to hand over what is left of it."""

EXTRAS = {"torch": "torch", "transformers": "torch", "safetensors": "torch", "numpy": "torch"}
"""Libraries that a run may miss, and the extra that brings them."""

FINISHING = "finishing: saving what there is; Ctrl-C again to stop at once"


def default_run_dir(name: str, now: datetime.datetime | None = None) -> Path:
    """Return ``runs/<name>-<UTC time>``, with a number behind it where that is taken."""
    stamp = f"{now or datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    safe = "".join(char if char.isalnum() or char in "-_." else "-" for char in name).lstrip(".") or "run"
    path = Path("runs") / f"{safe}-{stamp}"
    for count in range(2, 100):
        if not path.exists():
            break
        path = Path("runs") / f"{safe}-{stamp}-{count}"
    return path


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[RunFolder]:
    """Make the folder of a new run, and take it away again when the block fails before it holds anything.

    Raises `RunFolderError` when it cannot be made.
    """
    existed = path.exists()
    folder = RunFolder.create(path)
    try:
        yield folder
    except BaseException:
        parts = (folder.events, folder.payloads, folder.weights, folder.checkpoints, folder.logs)
        for part in (*parts, *([] if existed else [path])):
            with contextlib.suppress(OSError):  # not empty: whatever lies there is not ours to delete
                part.rmdir()
        raise


def require_progress(config: RunConfig) -> None:
    """Raise `BadInput` when a trial run of `config` in virtual time shows that it cannot make progress."""
    refused = refusal(config)
    if refused is not None:
        raise BadInput([f"{config.run.name}: refused: {refused}"])


def exit_code(outcome: RunOutcome) -> int:
    """Return the exit code that says how the run ended."""
    return {
        "completed": EXIT_DONE,
        "data_exhausted": EXIT_DATA_EXHAUSTED,
        "interrupted": EXIT_INTERRUPTED,
        "failed": EXIT_FAILED,
    }[outcome.outcome]


def execute(config: RunConfig, folder: RunFolder, base: Path, *, debug: bool = False) -> RunOutcome:
    """Run `config` in the new run folder and return how it ended.

    `base` is where relative paths of the configuration start. Raises `BadInput` when the parts cannot be built.
    The traceback of whatever ends the run is written to the run's ``logs`` folder.
    """
    with _traceback_kept(folder), _launching(config, base) as launcher:
        ports = _built(config, folder, base, launcher)
        with _written(folder, config) as (writer, payloads):
            bus = Bus(ports.clock, writer)
            return _conducted(config, ports, bus, payloads, folder, launcher, debug=debug)


def execute_resumed(
    folder: RunFolder, *, overrides: Sequence[str] = (), forked_from: str = "", debug: bool = False
) -> RunOutcome:
    """Go on with the run in `folder` and return how it ended; see `core/resume.py` for what survives.

    `overrides` (``"learner.lr=3e-4"``) change its configuration from here on. Raises `BadInput` when it cannot go on,
    or not with these settings, or its parts cannot be built; then the folder is as it was, but for a torn tail of the
    log, whose bytes are kept beside it.
    """
    with _traceback_kept(folder), folder.lock(), contextlib.ExitStack() as held:
        torn, past = _what_is_there(folder)
        config, last = past.config, past.last
        assert last is not None
        if overrides:
            config = changed_config(config, overrides)
            _require_changeable(folder, past, config)
            require_progress(config)
        base = Path(past.started.base or ".")
        launcher = held.enter_context(_launching(config, base))
        ports = _built(config, folder, base, launcher, after=last)
        named = past.started.run  # of all segments, whatever the run is called by now
        with _written(folder, config, named=named, next_seq=last.seq + 1, locked=True) as (writer, payloads):
            opening = opening_of(
                past, folder, payloads, ports, torn, config=config, forked_from=forked_from
            )
            click.echo("\n".join(resumed_lines(config.run.name, opening)), err=True)
            bus = Bus(ports.clock, writer, next_seq=last.seq + 1)
            return _conducted(
                config, ports, bus, payloads, folder, launcher, past=past, opening=opening, debug=debug
            )


def _what_is_there(folder: RunFolder) -> tuple[TornTail | None, Past]:
    """Cut a torn tail and fold the log. Raises `CommandFailed` where the log is damaged."""
    try:
        return cut_torn_tail(folder.events), past_of(folder)
    except LogDamaged as error:
        look = f"`{program()} log verify {folder.path}` says what can be read"
        raise CommandFailed([f"{folder.path}: {error}; {look}"]) from error


def _require_changeable(folder: RunFolder, past: Past, config: RunConfig) -> None:
    """Raise `BadInput` before anything is built where the run cannot go on with `config`."""
    lines = list(refused(past.config, config, 0))
    if lines:
        raise BadInput([f"{folder.path}: {line}" for line in lines])


@contextlib.contextmanager
def _launching(config: RunConfig, base: Path) -> Iterator[Launcher]:
    """Hold what starts the run's workers. Raises `BadInput` where there is no place for them."""
    with _refusing():
        from ..wire import launcher_of

        launcher = launcher_of(config, base)
        if not isinstance(launcher, LocalLauncher) and sys.stderr.isatty():
            click.echo(f"{config.run.name}: connecting to {config.cluster.kind} ...", err=True)
        asyncio.run(launcher.connect())
    try:
        yield launcher
    finally:
        asyncio.run(launcher.close())


def _built(
    config: RunConfig, folder: RunFolder, base: Path, launcher: Launcher, after: Record | None = None
) -> Ports:
    if sys.stderr.isatty():
        click.echo(f"{config.run.name}: loading libraries and data ...", err=True)
    with _refusing():
        from ..wire import build

        return build(config, folder, base, after=after, launcher=launcher)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Turn what says that this run cannot be made here into `BadInput`."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        raise BadInput([f"{error.name} is not installed: pip install 'eventrain[{extra}]'"]) from error
    except LauncherRefused as error:
        raise BadInput(list(error.lines)) from error
    except ValueError as error:
        raise BadInput([" ".join(str(error).split())]) from error


def _conducted(
    config: RunConfig,
    ports: Ports,
    bus: Bus,
    payloads: PayloadStore,
    folder: RunFolder,
    launcher: Launcher,
    *,
    past: Past | None = None,
    opening: Sequence[Event] = (),
    debug: bool,
) -> RunOutcome:
    """Run in an event loop, behind a screen; keep the traceback of what ended it."""
    run = Run(config, ports, bus, payloads, past=past, opening=opening)
    settle()
    with Screen(config, folder.path, debug=debug) as screen:
        outcome = asyncio.run(_supervised(run, screen, folder, launcher))
    if folder.weights.is_symlink():
        with contextlib.suppress(OSError):  # what could not be emptied is emptied when the run goes on
            forget_weights(folder.weights)
    if screen.failure is not None:
        click.echo(f"the view stopped early, the run did not: {screen.failure}", err=True)
    if outcome.exception is not None:
        _keep_traceback(folder, outcome.exception)
        if debug:
            traceback.print_exception(outcome.exception)
    return outcome


async def _supervised(run: Run, screen: Screen, folder: RunFolder, launcher: Launcher) -> RunOutcome:
    """Run with signals connected, and the screen and the telemetry beside it. Cancelling cancels the run."""
    from ..telemetry.live import CLOSE_S, Telemetry  # what does not run a run starts without it

    stop = asyncio.Event()
    telemetry = Telemetry(run, folder, None if isinstance(launcher, LocalLauncher) else launcher.reporting)
    with _signals(stop, screen):
        async with asyncio.TaskGroup() as group:
            showing = group.create_task(screen.show(run.bus, run.view, run.ports.clock.mono_ns), name="screen")
            telling = group.create_task(telemetry.tell(), name="telemetry")
            outcome = await run.conduct(stop)
            run.bus.close()
            await asyncio.wait({showing}, timeout=LAST_LINES_S)
            showing.cancel()
            await asyncio.wait({telling}, timeout=CLOSE_S + TELEMETRY_MORE_S)
            telling.cancel()
    return outcome


@contextlib.contextmanager
def _written(
    folder: RunFolder, config: RunConfig, *, named: str = "", next_seq: int = 0, locked: bool = False
) -> Iterator[tuple[LogWriter, PayloadStore]]:
    """Hold the run's lock, unless it is `locked` already, and its open log and payload store.

    The end of the block waits until everything is on disk; it raises `LogWriteError` when something cannot be.
    """
    with contextlib.ExitStack() as stack:
        if not locked:
            stack.enter_context(folder.lock())
        payloads = stack.enter_context(contextlib.closing(PayloadStore(folder.payloads)))
        writer = LogWriter(
            folder.events,
            run=named or config.run.name,
            epoch=folder.epoch,
            first_seq=next_seq,
            segment_bytes=config.log.segment_bytes,
            before_commit=(payloads.sync,),
        )
        yield stack.enter_context(contextlib.closing(writer)), payloads


@contextlib.contextmanager
def _signals(stop: asyncio.Event, screen: Screen) -> Iterator[None]:
    """Make the first Ctrl-C ask the run to stop, and a further one end the process at once.

    SIGTERM, and SIGHUP of a terminal that was closed, ask only. A SIGHUP that is ignored (nohup) stays ignored.
    """
    loop = asyncio.get_running_loop()

    def finish() -> None:
        if not stop.is_set():
            stop.set()
            screen.notice(FINISHING)

    def interrupted() -> None:
        if stop.is_set():
            screen.abandon()
            os._exit(EXIT_INTERRUPTED)  # engines and learner end by themselves when their channel closes
        finish()

    handlers = {signal.SIGINT: interrupted, signal.SIGTERM: finish}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = finish
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


@contextlib.contextmanager
def _traceback_kept(folder: RunFolder) -> Iterator[None]:
    """Keep the traceback of whatever goes wrong in the block, and let it go on."""
    try:
        yield
    except Exception as error:
        if not isinstance(first_leaf(error), CommandFailed):
            _keep_traceback(folder, error)
        raise


def _keep_traceback(folder: RunFolder, error: BaseException) -> None:
    """Write the traceback of `error` to the run's logs folder, whether or not anybody asked to see it."""
    stamp = f"{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    with contextlib.suppress(OSError):  # a full disk must not hide the first cause
        folder.logs.mkdir(parents=True, exist_ok=True)
        text = "".join(traceback.format_exception(error))
        (folder.logs / f"traceback-{stamp}.txt").write_text(text, encoding="utf-8")
