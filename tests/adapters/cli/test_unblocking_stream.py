"""Output that nobody reads holds up nobody who writes."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from eventrain.adapters.cli.unblocking_stream import PENDING_MAX, UnblockingStream


def test_everything_arrives_in_order(tmp_path: Path) -> None:
    """What is written before `close` is in the target afterwards, in order."""
    with (tmp_path / "out").open("w+", encoding="utf-8") as target:
        with UnblockingStream(target) as stream:
            for line in range(1000):
                stream.write(f"{line}\n")
        assert stream.dropped == 0
        target.seek(0)
        assert target.read().split() == [str(line) for line in range(1000)]


def test_a_reader_that_does_not_read_blocks_nobody() -> None:
    """With a full pipe, writing returns at once, and what exceeds the limit is dropped and counted."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w", encoding="utf-8") as target:
        stream = UnblockingStream(target)
        began = time.monotonic()
        for _ in range(4):
            stream.write("x" * (PENDING_MAX // 2))
        assert time.monotonic() - began < 1.0
        assert stream.dropped > 0
        drain = threading.Thread(target=lambda: [None for _ in iter(lambda: os.read(read_end, 1 << 16), b"")])
        drain.start()
        stream.close()
    drain.join()
    os.close(read_end)


def test_a_reader_that_is_gone_is_no_error() -> None:
    """A closed pipe drops the output and raises nothing in whoever writes."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    target = os.fdopen(write_end, "w", encoding="utf-8")
    with UnblockingStream(target) as stream:
        stream.write("lost\n")
    stream.write("after the end\n")
    assert stream.dropped > 0
    os.close(target.fileno())
    try:
        target.close()
    except OSError:
        return  # what was buffered for the closed pipe
