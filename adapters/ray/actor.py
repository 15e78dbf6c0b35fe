"""The inside of an actor: it holds one object and answers for it, as a worker process does.

Every method takes and returns bytes and ints, so nothing is pickled that could run code, and the two ways to a worker
carry the same. Ray runs the methods on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ..worker_object import HeldObject, encode_answer
from .outbox import Outbox, OutboxHandler
from .own_use import OwnUse


class Actor:
    """One object in a process of a Ray cluster."""

    def __init__(self) -> None:
        self._held = HeldObject()
        self._outbox = Outbox()
        self._use: OwnUse | None = None

    async def make(self, order: bytes) -> bytes:
        """Make the object; return ``["up", facts]`` or ``["failed", kind, text]`` in msgpack.

        The facts are ``node``, the machine's address; ``node_id``, Ray's name of it; ``home``; and ``pid``.
        `order` has ``worker``, ``target`` and ``settings``; ``home``, the controller's node, on which output goes to
        ``log_path``; ``modules``, a folder whose modules are found if it is there; and ``threads`` for the figures.
        """
        import ray

        said = msgspec.msgpack.decode(order)
        node_id = ray.get_runtime_context().get_node_id()
        at_home = node_id == said["home"]
        if at_home and said["log_path"]:
            _write_output_to(said["log_path"])
        if said["modules"]:
            sys.path.append(said["modules"])  # last: nothing there can hide a library; ignored where it is not
        logging.getLogger().addHandler(OutboxHandler(self._outbox))
        node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        answer = await self._held.make(said["target"], said["settings"])
        if answer[0] == "up":
            answer.append({"node": node, "node_id": node_id, "home": at_home, "pid": os.getpid()})
            if not at_home:  # at home the controller's own source looks at the process
                self._use = await asyncio.to_thread(OwnUse.begun, said["worker"], node, said["threads"])
        return encode_answer(answer)

    async def call(self, order: bytes) -> bytes:
        """Make the call ``[number, method, params]``; return the answer of `HeldObject.answer`."""
        number, method, params = msgspec.msgpack.decode(order)
        try:
            answer = await self._held.answer(number, method, params)
        except asyncio.CancelledError:  # by `cancel`: nobody waits, and Ray takes it for no error
            answer = ["error", number, "CancelledError", "the call was cancelled"]
        return encode_answer(answer)

    async def cancel(self, number: int) -> None:
        """Cancel call `number`."""
        self._held.cancel(number)

    async def reports(self, received: int) -> bytes:
        """Return what has happened here since item `received`; see `Outbox.answer`."""
        asked_ns = self._outbox.now_ns()
        if self._use is not None:
            for fields in await asyncio.to_thread(self._use.sample):
                self._outbox.put("device_sampled", fields)
        return self._outbox.answer(received, asked_ns)

    async def live(self) -> None:
        """Never return: whoever awaits it learns that the actor is gone."""
        await asyncio.Event().wait()

    async def close(self) -> bool:
        """Let the object close; return whether it did so without an error."""
        return await self._held.close()


def _write_output_to(log_path: str) -> None:
    """Append standard output and error of this process to a file, what native code writes included."""
    Path(log_path).parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        for stream in (1, 2):
            os.dup2(log, stream)
    finally:
        os.close(log)


def as_remote(**options: Any) -> Any:
    """Return `Actor` for Ray, with these options."""
    import ray

    return ray.remote(**options)(Actor)
