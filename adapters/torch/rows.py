"""Requests, and their state while they share a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .sampling import uniforms


@dataclass(eq=False, slots=True)
class Sequence:
    """One request, from its arrival to its end."""

    request: str
    prompt: NDArray[np.int64]
    max_tokens: int
    temperature: float
    top_p: float
    stop: tuple[int, ...]
    seed: int
    arrived_s: float
    started_s: float = -1.0
    """When its first forward pass began."""
    row: int = -1
    """Its place in the batch, or -1 while it waits and once it has ended."""


class Finished(NamedTuple):
    """What became of a sequence. `error` is empty, or says why there is no result."""

    sequence: Sequence
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    version_spans: tuple[tuple[int, int], ...]
    reason: Literal["stop", "length", "abort"]
    error: str = ""


@dataclass(slots=True)
class Rows:
    """The state of every row of a batch, in arrays [slots] and [slots, context].

    length: tokens so far; cached: those whose keys and values are stored; prompt: those that were given;
    limit: length at which the answer ends; stop: the stop tokens, padded with -1.
    """

    slots: int
    context: int
    tokens: NDArray[np.int64] = field(init=False)
    logprobs: NDArray[np.float32] = field(init=False)
    versions: NDArray[np.int32] = field(init=False)
    uniform: NDArray[np.float64] = field(init=False)
    length: NDArray[np.int64] = field(init=False)
    cached: NDArray[np.int64] = field(init=False)
    prompt: NDArray[np.int64] = field(init=False)
    limit: NDArray[np.int64] = field(init=False)
    temperature: NDArray[np.float32] = field(init=False)
    top_p: NDArray[np.float32] = field(init=False)
    stop: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        wide = (self.slots, self.context)
        self.tokens = np.zeros(wide, np.int64)
        self.logprobs = np.zeros(wide, np.float32)
        self.versions = np.zeros(wide, np.int32)
        self.uniform = np.zeros(wide, np.float64)
        self.length = np.zeros(self.slots, np.int64)
        self.cached = np.zeros(self.slots, np.int64)
        self.prompt = np.zeros(self.slots, np.int64)
        self.limit = np.zeros(self.slots, np.int64)
        self.temperature = np.ones(self.slots, np.float32)
        self.top_p = np.ones(self.slots, np.float32)
        self.stop = np.full((self.slots, 1), -1, np.int64)

    def fill(self, row: int, sequence: Sequence) -> None:
        """Begin `sequence` in `row`, with nothing cached."""
        prompt = len(sequence.prompt)
        limit = min(prompt + sequence.max_tokens, self.context)
        self.tokens[row, :prompt] = sequence.prompt
        self.uniform[row, prompt:limit] = uniforms(sequence.seed, limit - prompt)
        self.length[row] = self.prompt[row] = prompt
        self.cached[row] = 0
        self.limit[row] = limit
        self.temperature[row] = sequence.temperature
        self.top_p[row] = sequence.top_p
        if len(sequence.stop) > self.stop.shape[1]:
            more = len(sequence.stop) - self.stop.shape[1]
            self.stop = np.pad(self.stop, ((0, 0), (0, more)), constant_values=-1)
        self.stop[row] = -1
        self.stop[row, : len(sequence.stop)] = sequence.stop

    def move(self, source: int, target: int) -> None:
        """Copy all of row `source` over row `target`."""
        length, limit = self.length[source], self.limit[source]
        for array in (self.tokens, self.logprobs, self.versions):
            array[target, :length] = array[source, :length]
        self.uniform[target, :limit] = self.uniform[source, :limit]
        scalars = (self.length, self.cached, self.prompt, self.limit, self.temperature, self.top_p, self.stop)
        for array in scalars:
            array[target] = array[source]
