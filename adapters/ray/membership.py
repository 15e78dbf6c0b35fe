"""This process as a member of a Ray cluster: how it joins one, or starts one of its own, and how it leaves.

Everything here blocks, and belongs into one thread: Ray's own processes, where there is no cluster to join, are bound
by the kernel to the thread that started them, and die with it however it ends.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from contextlib import nullcontext
from typing import Any

from ...core.config import ClusterSection
from ..wording import MissingExtra, require
from .bundles import ClusterRefused
from .leftovers import Reaper

HINT = "; something listens there: is it a Ray head, and are RAY_AUTH_MODE and RAY_AUTH_TOKEN those of it?"
PORT = 6379
"""Where a cluster listens if its address names no port."""


class Membership:
    """Of the cluster at ``cluster.address``, or of one of our own on this machine."""

    def __init__(self, section: ClusterSection) -> None:
        self._address = section.address
        self._reaper: Reaper | None = None
        self.ray: Any = None
        """The library, from `join` on."""

    @property
    def where(self) -> str:
        """The cluster in words."""
        return f"the Ray cluster at '{self._address}'" if self._address else "Ray on this machine"

    @property
    def hint(self) -> str:
        """What may be wrong where something listens and will not have us: Ray does not say."""
        return HINT if self._address else ""

    def join(self, ends: float) -> None:
        """Join or start the cluster; `ends` is when that has to be done, by ``time.monotonic``.

        Ray itself may take longer. Raises `ClusterRefused`, and is no member then.
        """
        try:
            ray = require("ray", "ray")
            require("ray.util.placement_group", "ray")
        except MissingExtra as error:
            raise ClusterRefused(str(error)) from error
        logging.getLogger("ray").setLevel(logging.ERROR)  # what it says at its start is news to nobody
        address = self._address
        if address:
            _require_reachable(address, ends - time.monotonic())
        if ray.is_initialized():
            raise ClusterRefused("this process is connected to a Ray cluster already, and Ray allows one")
        self.ray = ray
        options: dict[str, Any] = {"address": address} if address else {"address": "local", "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if not address:
            self._reaper = Reaper()
        try:
            with self._reaper or nullcontext():
                ray.init(**options, log_to_driver=False, configure_logging=False)
        except (ray.exceptions.RayError, RuntimeError, OSError, ValueError) as error:
            self.leave()
            hint = self.hint if isinstance(error, ConnectionError) else ""
            raise ClusterRefused(f"{self.where}: {_why(error)}{hint}") from error
        _silence()

    def leave(self) -> None:
        """Leave the cluster, and end it if it is ours. Idempotent."""
        left, self._reaper = self._reaper, None
        if self.ray is not None and self.ray.is_initialized():
            self.ray.shutdown()
        if left is not None:
            left.reap()


def _require_reachable(address: str, limit_s: float) -> None:
    """Raise `ClusterRefused` unless something listens at `address`: Ray itself would try for long, and then abort."""
    where = f"'{address}'"
    if address == "auto":
        address = _found()
        where = f"'auto', which is '{address}',"
    if not address:
        return
    if "://" in address:
        client = address.startswith("ray://")
        what = "Ray Client cannot carry a run" if client else "this is not the address of a Ray head"
        raise ClusterRefused(
            f"cluster.address = '{address}': {what}; give the head's host:port from a machine of the cluster, or "
            "submit the run as a job and say 'auto'"
        )
    host, _, port = address.rpartition(":") if ":" in address else (address, "", str(PORT))
    if not port.isdecimal():
        raise ClusterRefused(f"cluster.address = '{address}': '{port}' is no port; the head's host:port would do")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=max(0.1, limit_s)).close()
    except (OSError, ValueError) as error:
        raise ClusterRefused(f"the Ray cluster at {where} cannot be reached: {_why(error)}") from error


def _found() -> str:
    """Return the address that Ray would take for ``auto``; empty: it does not tell.

    A cluster that was killed is still noted on its machine. There is no public function for that. Raises
    `ClusterRefused` where there is none to be found.
    """
    private: Any = sys.modules.get("ray._private.services")
    try:
        return str(private.get_ray_address_from_environment("auto", None))
    except ConnectionError:
        raise ClusterRefused(
            "the Ray cluster at 'auto': there is none on this machine; join it with `ray start`, or give its head's "
            "host:port"
        ) from None
    except Exception:  # noqa: BLE001 - the function has moved
        return ""


def _silence() -> None:
    """Keep Ray from printing a worker's death into the run's screen; events tell of it.

    There is no setting for that: ``log_to_driver`` is about the output of workers alone.
    """
    private: Any = sys.modules.get("ray._private.worker")
    if hasattr(private, "print_to_stdstream"):
        private.print_to_stdstream = lambda *_, **__: None


def _why(error: BaseException) -> str:
    """Return the error's text as one line of bearable length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 400 else text[:397] + "..."
