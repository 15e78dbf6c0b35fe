"""The ranks of one learner, from the inside of one of them: how they find each other, and what they tell each other.

With one rank nothing here communicates, and `torch.distributed` is not touched.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

LOOPBACK = "127.0.0.1"
ELSEWHERE = "192.0.2.1"
"""An address that no host has (RFC 5737); a datagram socket that is connected to it tells which way out there is."""


class PeerFailed(Exception):
    """Another rank failed, and says why; this one did not go on without it."""


class RankGroup:
    """Rank `rank` of `ranks`, computing on `device`."""

    def __init__(self, rank: int, ranks: int, device: torch.device, timeout_s: float) -> None:
        self.rank = rank
        self.ranks = ranks
        self.device = device
        self.mesh: DeviceMesh | None = None
        self._timeout = timedelta(seconds=timeout_s)
        self._store: TCPStore | None = None

    def offer(self, *, local: bool) -> str:
        """Open the place where all ranks meet, on a free port here; return its ``host:port``.

        `local` says that all ranks are on this machine: then nobody else can reach it.
        """
        host = LOOPBACK if local else outward_address()
        listener = socket.create_server((host, 0))
        port: int = listener.getsockname()[1]
        self._store = TCPStore(
            host,
            port,
            self.ranks,
            is_master=True,
            timeout=self._timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),  # bound by us: no port is lost to another, no other address listens
        )
        return f"{host}:{port}"

    def join(self, address: str) -> None:
        """Meet the other ranks at `address`; return when all are there."""
        host, _, port = address.rpartition(":")
        if host == LOOPBACK and sys.platform == "linux":
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = self._store or TCPStore(
            host, int(port), self.ranks, is_master=False, timeout=self._timeout, wait_for_workers=False
        )
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.set_device(self.device)
        dist.init_process_group(
            "nccl" if on_gpu else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.ranks,
            timeout=self._timeout,
            device_id=self.device if on_gpu else None,
        )
        self.mesh = init_device_mesh(self.device.type, (self.ranks,))

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over all ranks."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def largest(self, value: float) -> float:
        """Return the largest `value` of all ranks."""
        return float(self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.MAX).item())

    def agree(self, error: Exception | None = None) -> None:
        """Raise `error`, or `PeerFailed` where another rank has one: all ranks go on, or none does.

        A rank that raised alone would leave the others in the next collective.
        """
        failed = self.largest(float(error is not None))
        if error is not None:
            raise error
        if failed:
            raise PeerFailed("another rank failed")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Do what is in the block, which tells other ranks nothing; leave it once it went well on all of them."""
        error = None
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - raised again, once the others know
            error = raised
        self.agree(error)

    def _reduced(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.mesh is None:
            return values
        there = values.to(self.device, copy=True)
        dist.all_reduce(there, op=operation)
        return there.cpu()


def rank_device(device: torch.device, rank: int, ranks: int) -> torch.device:
    """Return the device of rank `rank`: of the GPUs that its process sees, each rank takes the next one."""
    if ranks == 1 or device.type != "cuda":
        return device
    if device.index is not None:
        raise ValueError(
            f"learner.device = '{device}' is one GPU, but learner.ranks = {ranks}: 'cuda' would do"
        )
    return torch.device("cuda", rank % torch.cuda.device_count())


def outward_address() -> str:
    """Return the address by which other machines reach this one. Nothing is sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect((ELSEWHERE, 9))
            return str(probe.getsockname()[0])
        except OSError:  # no route out: the name of the machine is what is left
            return socket.gethostbyname(socket.gethostname())
