"""How weights come into vLLM: a weight transfer engine of ours, which reads the learner's bucketed file.

This runs inside vLLM's worker processes, which load it as their extension (``worker_extension_cls``); importing it
registers the engine under `BACKEND`. It works where worker and learner see the same file: in shared memory, on a local
disk, or on a shared one.

An update goes through vLLM's own ``start_weight_update``, ``update_weights`` and ``finish_weight_update``. They take no
lease and answer nothing, so the controller calls `UpdateExtension` instead, which checks and then calls them. Each
worker reads, verifies and counts for itself, and all their receipts have to agree.

Not done: on GPUs vLLM can take weights from the learner's GPU without a file (its back ends ``nccl`` and ``ipc``). They
would take the place of `FileTransfer`, behind the same `UpdateExtension`; the learner would have to join their process
group. Nothing here has been run on a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from ...core.ports import EngineError
from ..weights.update import Arrived, Updates
from .backend import BACKEND

TAKEN = "another run has taken this engine over"

PARENT_POLL_S = 1.0
"""Between two looks whether the process that started vLLM lives."""

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


@dataclass
class NoInfo(WeightTransferInitInfo):
    """vLLM asks for it; a file needs no handshake."""


@dataclass
class BucketInfo(WeightTransferUpdateInfo):
    """Which part of the weights has arrived."""

    bucket: int


class FileTransfer(WeightTransferEngine[NoInfo, BucketInfo]):
    """Loads buckets of a weights file into the model, each verified before any of its tensors is touched."""

    init_info_cls = NoInfo
    update_info_cls = BucketInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.owner = ""
        """The run that may update. Leases of another one mean nothing."""
        self.updates = Updates()
        self.fetching: Future[None] = Future()
        """The weights that are read ahead of an update."""
        self.arrived: Arrived | None = None
        """The bucket that `update_weights` is to take."""
        self._loading = False
        self._parameters = {name for name, _ in self.model.named_parameters()}
        self._loaded: set[str] | None = set()
        """Those of them that have their values; None if the model does not say which it loads."""
        _end_with_starter()

    def attach(self, owner: str, former: Sequence[str]) -> None:
        """Take updates from `owner` alone, from now on; its leases start anew.

        `former` are the owners that it was before. Raises `EngineError` where it was one and is so no more: a run that
        lost its engine to another does not take it back, or both would lose it for ever.
        """
        if former and self.owner and self.owner not in former:
            raise EngineError(TAKEN)
        if owner != self.owner:
            self.updates.shut()
            self.owner, self.updates = owner, Updates()

    def init_transfer_engine(self, init_info: NoInfo) -> None:
        """Do nothing: there is nobody to meet."""

    def start_weight_update(self) -> None:
        """Make the model ready to be loaded anew; what an unfinished update left in it is thrown away.

        vLLM keeps what it was given of a layer until it has the whole of it. Given the same tensor again it would
        count that twice and take the layer for complete too early, so a layer that waits is first brought to an end.
        """
        if self._loading:
            finalize_layerwise_reload(self.model, self.model_config)
        self._loading, self._loaded = True, set()
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load the bucket that has arrived. Raises what vLLM's loaders raise."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: BucketInfo) -> None:
        """Load the bucket that has arrived."""
        arrived, self.arrived = self.arrived, None
        if arrived is None or arrived.bucket.number != update_info.bucket:
            raise EngineError(f"bucket {update_info.bucket} has not arrived")
        loaded = self.model.load_weights(
            (spec.name, torch.frombuffer(view, dtype=_TYPES[spec.dtype]).reshape(spec.shape))
            for spec, view in arrived.bucket.split(arrived.data)
        )
        self._loaded = None if loaded is None or self._loaded is None else self._loaded | loaded

    def finish_weight_update(self) -> None:
        """Put the new weights in place. Raises `EngineError` while a parameter of the model has none."""
        left = self._parameters - self._loaded if self._loaded is not None else set()
        # What vLLM's own loader demands of a checkpoint, and of which models it can.
        if left and self.model_config.quantization is None:
            raise EngineError(f"the weights have nothing for {len(left)} parameters, such as {min(left)}")
        finalize_layerwise_reload(self.model, self.model_config)
        self._loading = False

    def shutdown(self) -> None:
        """Let go of the files."""
        self.updates.shut()


class UpdateExtension:
    """Methods that vLLM's workers get: what the controller calls, through ``collective_rpc``.

    They take one JSON text, which every way into vLLM lets through, and answer ``{"ok": ...}``, or
    ``{"refused": message}`` where nothing was touched, or ``{"error": message}``: an exception would reach the
    controller as text without a type, if at all.
    """

    weight_transfer_engine: FileTransfer
    _weight_update_active: bool

    def eventrain_attach(self, request: str) -> dict[str, Any]:
        """Take updates from ``owner``, which was ``former``, alone. Answers what `eventrain_describe` does."""
        return _answer(self._eventrain_attach, request)

    def eventrain_describe(self, request: str) -> dict[str, Any]:
        """Answer what this engine is: vocabulary, context, slots, device, and the model's ``keys``."""
        return _answer(self._eventrain_describe, request)

    def eventrain_fetch(self, request: str) -> dict[str, Any]:
        """Begin to read and verify the file ``path``, beside what vLLM computes."""
        return _answer(self._eventrain_fetch, request)

    def eventrain_fetched(self, request: str) -> dict[str, Any]:
        """Answer whether that is done; refuses if it has failed."""
        return _answer(self._eventrain_fetched, request)

    def eventrain_begin(self, request: str) -> dict[str, Any]:
        """Begin an update from the file ``path``, or begin it again."""
        return _answer(self._eventrain_begin, request)

    def eventrain_transfer(self, request: str) -> dict[str, Any]:
        """Take ``bucket``, unless it was taken."""
        return _answer(self._eventrain_transfer, request)

    def eventrain_finish(self, request: str) -> dict[str, Any]:
        """Finish the update, unless it is; answer version, tensors and digest of what arrived."""
        return _answer(self._eventrain_finish, request)

    def _eventrain_attach(self, said: dict[str, Any]) -> dict[str, Any]:
        self.weight_transfer_engine.attach(said["owner"], said["former"])
        return self._eventrain_describe({"keys": []})

    def _eventrain_describe(self, said: dict[str, Any]) -> dict[str, Any]:
        engine = self.weight_transfer_engine
        model = engine.model_config
        values = model.hf_text_config.to_dict()
        return {
            "vocabulary": model.get_vocab_size(),
            "context_tokens": model.max_model_len,
            "slots": engine.vllm_config.scheduler_config.max_num_seqs,
            "device": engine.device.type,
            "node": socket.gethostname(),
            "logprobs_mode": model.logprobs_mode,
            "model": {key: values.get(key) for key in said["keys"]},
        }

    def _eventrain_fetch(self, said: dict[str, Any]) -> None:
        updates, path = self._eventrain_updates(said), Path(said["path"])
        fetching: Future[None] = Future()
        self.weight_transfer_engine.fetching = fetching

        def fetch() -> None:
            try:
                updates.fetch(path)
                fetching.set_result(None)
            except EngineError as error:
                fetching.set_exception(error)
            except Exception as error:  # noqa: BLE001 - told where it is asked for
                fetching.set_exception(EngineError(f"{type(error).__name__}: {error}"))

        threading.Thread(target=fetch, name="fetch weights", daemon=True).start()

    def _eventrain_fetched(self, said: dict[str, Any]) -> bool:
        self._eventrain_updates(said)
        fetching = self.weight_transfer_engine.fetching
        if not fetching.done():
            return False
        fetching.result()
        return True

    def _eventrain_begin(self, said: dict[str, Any]) -> None:
        updates = self._eventrain_updates(said)
        updates.begin(Path(said["path"]), said["version"], said["lease"])
        self._weight_update_active = False  # or vLLM refuses to start while one is under way
        self._eventrain_natively("start_weight_update")

    def _eventrain_transfer(self, said: dict[str, Any]) -> None:
        arrived = self._eventrain_updates(said).transfer(said["bucket"], said["lease"])
        if arrived is not None:
            self.weight_transfer_engine.arrived = arrived
            self._eventrain_natively("update_weights", {"bucket": arrived.bucket.number})

    def _eventrain_finish(self, said: dict[str, Any]) -> dict[str, Any]:
        updates = self._eventrain_updates(said)
        receipt, first = updates.finish(said["lease"])
        if first:
            self._eventrain_natively("finish_weight_update")
            updates.close()
        return asdict(receipt)

    def _eventrain_updates(self, said: dict[str, Any]) -> Updates:
        if said["owner"] != self.weight_transfer_engine.owner:
            raise EngineError(TAKEN)
        return self.weight_transfer_engine.updates

    def _eventrain_natively(self, method: str, *args: Any) -> None:
        """Call vLLM's own method; an update of which a part failed there has to begin again."""
        try:
            getattr(self, method)(*args)
        except Exception as error:
            self.weight_transfer_engine.updates.fail()
            raise _Failed(" ".join(f"{type(error).__name__}: {error}".split())) from error


class _Failed(Exception):
    """vLLM failed, in whatever state that leaves the model."""


def _answer(method: Callable[[dict[str, Any]], Any], request: str) -> dict[str, Any]:
    try:
        return {"ok": method(json.loads(request))}
    except EngineError as error:
        return {"refused": str(error)}
    except _Failed as error:
        return {"error": str(error)}


def _end_with_starter() -> None:
    """Have vLLM's processes killed when the process that started vLLM ends: they would live on, with all they hold.

    Between this one and that one there may be vLLM's scheduler, which runs nothing of ours and so is ended from here.
    Asking the kernel to (PDEATHSIG) would work from a process's first thread alone, and vLLM is not in that one.
    """
    ours, starter = [], os.getppid()
    while _title(starter).startswith("VLLM::"):
        ours.append(starter)
        starter = _parent_of(starter)

    def watch() -> None:
        while (_parent_of(ours[-1]) if ours else os.getppid()) == starter:
            time.sleep(PARENT_POLL_S)
        for pid in ours:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with starter", daemon=True).start()


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)
