"""Continuous batching: requests join and leave a batch between any two forward passes.

transformers has continuous batching of its own (`ContinuousBatchingManager`), with paged attention, log-probs, abort
and a pause in which weights may be exchanged. It is not used, because it samples all rows from one global generator
(so a request's tokens depend on its neighbours), knows nothing of weight versions, cannot compute the cache of what
is in flight again after an update, and is slow for small models on a CPU. Tokens per second with 1, 16 and 64
requests in flight; 2 layers of 64, prompts of 24 and answers of 100 tokens, one thread of a shared two-core machine:

    transformers 5.24, manager      760     7,600     6,900
    this loop                     1,100    13,600    29,900

So the loop below is ours and the forward pass is transformers': any causal LM with ordinary full attention serves.
Rows are fed their *pending* tokens, those that are not in the cache yet: the whole prompt at first, then the token
that was sampled last, or everything again once new weights have made the cache stale. Bookkeeping is done in numpy
over all rows at once; there is one transfer from the device per step.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from .rows import Finished, Rows, Sequence
from .sampling import draw
from .slot_cache import SlotCache, Stored
from .weights import put_weights

FORWARD_TOKENS_MAX = 8192
"""Padded tokens of one forward pass at most, which bounds its memory."""
PASS_TOKENS = 16
"""Padded tokens that cost as much as one more forward pass.

Measured with 0.1 to 4 million parameters: anything from 4 to 64 is as good, 128 and more cost up to 30 %.
"""
NO_SAMPLER = -2
"""Differs from every version."""
TWIN_TOKENS_MIN = 8
"""Shorter prompts are not worth the copy that saves a second prefill."""


class Retained(NamedTuple):
    """The cache of a finished sequence, kept for a prompt that continues it."""

    tokens: NDArray[np.int64]
    stored: Stored


class Decoder:
    """A batch of sequences and the model that continues them. For one thread."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        version: int,
        slots: int,
        context_tokens: int,
        keep_cache: bool,
        clock: Callable[[], float],
    ) -> None:
        self.version = version
        model.eval()  # type: ignore[no-untyped-call]
        self._model = model
        self._device = model.device
        self._clock = clock
        self._slots = slots
        self._context = context_tokens
        self._keep_cache = keep_cache
        self._cache = SlotCache(model.config, slots, context_tokens)
        self._cache_argument = (
            "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        )
        self._rows = Rows(slots, context_tokens)
        self._active: list[Sequence] = []
        self._waiting: deque[Sequence] = deque()
        self._retained: OrderedDict[str, Retained] = OrderedDict()
        self._retained_tokens = 0
        self._retained_tokens_max = slots * context_tokens // 2
        self._seen = torch.zeros((), dtype=model.dtype, device=self._device)
        self._masked = torch.full_like(self._seen, torch.finfo(model.dtype).min)
        self._columns = torch.arange(context_tokens, device=self._device)

    @property
    def active(self) -> int:
        """Sequences that hold a slot."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot."""
        return len(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Let `sequence` join as soon as a slot is free, first come first served."""
        self._waiting.append(sequence)

    @torch.inference_mode()
    def abort(self, sequence: Sequence) -> None:
        """Forget `sequence` and free its slot. Does nothing if it has ended."""
        if sequence.row >= 0:
            self._leave(sequence.row)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def load(self, tensors: Mapping[str, torch.Tensor], version: int) -> None:
        """Sample with these weights from the next token on. Raises `WeightsUnusable`, and then changes nothing."""
        put_weights(self._model, tensors)
        self.version = version
        if not self._keep_cache:
            self._rows.cached[:] = 0
            self._forget_retained()

    def drop_active(self) -> list[Sequence]:
        """Empty every slot, and forget all that is cached; return who was in them."""
        dropped = self._active
        for sequence in dropped:
            sequence.row = -1
        self._active = []
        self._forget_retained()
        return dropped

    def cut_off(self) -> list[Finished]:
        """Empty every slot; return who was in them, with the tokens so far."""
        cut = [self._result(row, "abort") for row in range(len(self._active))]
        for row in reversed(range(len(cut))):
            self._retain(row)
            self._leave(row)
        return cut

    @torch.inference_mode()
    def step(self, *, admit: bool = True) -> list[Finished]:
        """Sample one token for every sequence in a slot, after giving free slots to those that wait.

        Returns those that ended, in row order.
        """
        before = len(self._active)
        twins = self._admit() if admit else []
        count = len(self._active)
        if count == 0:
            return []
        if count > before:
            now_s = self._clock()
            for sequence in self._active[before:]:
                sequence.started_s = now_s
        logits = self._logits(count - len(twins))
        if twins:
            logits = torch.cat((logits, logits[twins]))
            self._cache.spread(twins, count - len(twins), int(self._rows.length[twins].max()))
        rows = self._rows
        rows.cached[:count] = rows.length[:count]
        tokens, logprobs = self._draw(logits, count)
        return self._record(tokens, logprobs, count)

    # Joining

    def _admit(self) -> list[int]:
        """Give free slots to waiting sequences; return the rows whose prompts the last rows repeat.

        A group asks several times with one prompt: it is computed once and copied.
        """
        joining = [
            self._waiting.popleft() for _ in range(min(self._slots - len(self._active), len(self._waiting)))
        ]
        firsts: dict[bytes, Sequence] = {}
        repeats: list[Sequence] = []
        twins: list[Sequence] = []
        for sequence in joining:
            key = sequence.prompt.tobytes()
            if key in firsts and len(sequence.prompt) >= TWIN_TOKENS_MIN:
                repeats.append(sequence)
                twins.append(firsts[key])
            else:
                firsts.setdefault(key, sequence)
                self._place(sequence)
                self._reuse(sequence)
        for sequence in repeats:
            self._place(sequence)
        return [twin.row for twin in twins]

    def _place(self, sequence: Sequence) -> None:
        sequence.row = len(self._active)
        self._active.append(sequence)
        self._rows.fill(sequence.row, sequence)

    def _reuse(self, sequence: Sequence) -> None:
        """Start from the cache of the trajectory's turn before, if the prompt continues it."""
        retained = self._retained.pop(_trajectory(sequence.request), None)
        if retained is None:
            return
        known = len(retained.tokens)
        self._retained_tokens -= known
        if known < len(sequence.prompt) and np.array_equal(sequence.prompt[:known], retained.tokens):
            self._cache.put_back(sequence.row, retained.stored, known)
            self._rows.cached[sequence.row] = known

    # Computing

    def _logits(self, count: int) -> torch.Tensor:
        """Feed the first `count` rows what is pending; return float32 logits [count, vocabulary] of the last."""
        pending = self._rows.length[:count] - self._rows.cached[:count]
        parts = [
            self._forward(first, last, queries) for first, last, queries in self._passes(pending.tolist())
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _passes(self, pending: list[int]) -> list[tuple[int, int, int]]:
        """Cut the rows into forward passes ``(first row, end row, tokens per row)``.

        A row joins the pass before it unless that would cost more padding than a pass of its own.
        """
        passes: list[tuple[int, int, int]] = []
        first, queries = 0, pending[0]
        for row in range(1, len(pending)):
            wider = max(queries, pending[row])
            together = wider * (row + 1 - first)
            waste = together - queries * (row - first) - pending[row]
            if waste > PASS_TOKENS or together > FORWARD_TOKENS_MAX:
                passes.append((first, row, queries))
                first, queries = row, pending[row]
            else:
                queries = wider
        passes.append((first, len(pending), queries))
        return passes

    def _forward(self, first: int, last: int, queries: int) -> torch.Tensor:
        """Run rows [first, last) over their last `queries` tokens, aligned right so that the logits share a column."""
        rows = self._rows
        length = rows.length[first:last, None]
        columns = length - queries + np.arange(queries)
        write = np.where(columns < rows.cached[first:last, None], -1, columns)
        positions = np.maximum(columns, 0)
        token_ids = np.take_along_axis(rows.tokens[first:last], positions, axis=1)
        width = int(length.max())
        self._cache.aim(first, write, width, self._device)
        position_ids = torch.from_numpy(positions).to(self._device)
        mask = torch.where(self._columns[:width] > position_ids[:, None, :, None], self._masked, self._seen)
        output = self._model(
            input_ids=torch.from_numpy(token_ids).to(self._device),
            attention_mask=mask,
            position_ids=position_ids,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_argument: self._cache},
        )
        return output.logits[:, -1].float()  # type: ignore[no-any-return]

    def _draw(self, logits: torch.Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rows = self._rows
        top_p = rows.top_p[:count]
        uniform = rows.uniform[np.arange(count), rows.length[:count]]
        tokens, logprobs = draw(
            logits,
            torch.from_numpy(rows.temperature[:count]).to(self._device),
            torch.from_numpy(top_p).to(self._device) if (top_p < 1).any() else None,
            torch.from_numpy(uniform).to(self._device),
        )
        return tokens.cpu().numpy(), logprobs.cpu().numpy()

    # Leaving

    def _record(self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32], count: int) -> list[Finished]:
        rows = self._rows
        every, length = np.arange(count), rows.length[:count]
        rows.tokens[every, length] = tokens
        rows.logprobs[every, length] = logprobs
        rows.versions[every, length] = self.version
        length += 1
        stopped = (rows.stop[:count] == tokens[:, None]).any(axis=1)
        unsound = ~np.isfinite(logprobs)
        ended = np.flatnonzero(stopped | unsound | (length >= rows.limit[:count]))
        if len(ended) == 0:
            return []
        finished = [
            self._result(int(row), "stop" if stopped[row] else "length", unsound=bool(unsound[row]))
            for row in ended
        ]
        for row in reversed(ended.tolist()):
            if not unsound[row]:
                self._retain(row)
            self._leave(row)
        return finished

    def _result(
        self, row: int, reason: Literal["stop", "length", "abort"], *, unsound: bool = False
    ) -> Finished:
        rows = self._rows
        new = slice(rows.prompt[row], rows.length[row])
        versions = rows.versions[row, new]
        starts = np.flatnonzero(np.diff(versions, prepend=NO_SAMPLER))
        counts = np.diff(starts, append=len(versions))
        return Finished(
            self._active[row],
            rows.tokens[row, new].astype(np.int32),
            rows.logprobs[row, new].copy(),
            tuple(zip(versions[starts].tolist(), counts.tolist(), strict=True)),
            reason,
            f"weights {self.version} gave a log-prob that is not finite" if unsound else "",
        )

    def _leave(self, row: int) -> None:
        """Free a slot: the last row moves into it, so that rows in use stay together."""
        self._active[row].row = -1
        moving = self._active.pop()
        last = len(self._active)
        if row != last:
            self._cache.move(last, row, int(self._rows.cached[last]))
            self._rows.move(last, row)
            self._active[row] = moving
            moving.row = row

    def _retain(self, row: int) -> None:
        tokens = int(self._rows.cached[row])
        stored = self._cache.take_out(row, tokens)
        if stored is None:
            return
        key = _trajectory(self._active[row].request)
        before = self._retained.pop(key, None)
        self._retained_tokens += tokens - (len(before.tokens) if before else 0)
        self._retained[key] = Retained(self._rows.tokens[row, :tokens].copy(), stored)
        while self._retained_tokens > self._retained_tokens_max and self._retained:
            _, oldest = self._retained.popitem(last=False)
            self._retained_tokens -= len(oldest.tokens)

    def _forget_retained(self) -> None:
        self._retained.clear()
        self._retained_tokens = 0


def _trajectory(request: str) -> str:
    """Return what the turns of one trajectory have in common: ``57/3`` of ``57/3/0``."""
    return request.rpartition("/")[0] or request
