"""The payload of one trajectory: what TrajectoryCompleted refers to.

MessagePack through msgspec; the arrays are raw little-endian bytes, so that a thousand tokens cost microseconds.
Nothing in it is code: decoding a foreign payload can fail, not execute.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable

import msgspec


class PayloadInvalid(ValueError):
    """The bytes are no trajectory payload, or its arrays do not fit together."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One answer of the policy and what came back."""

    start: int
    """Position of its first sampled token in the trajectory."""
    length: int
    """Sampled tokens."""
    finish_reason: str
    text: str
    messages: list[tuple[str, str]]
    """(role, content) of the environment's answer; empty at the end."""
    queue_s: float
    llm_s: float
    env_s: float


class TrajectoryPayload(msgspec.Struct, frozen=True):
    """One trajectory of T tokens, as sampled; never re-tokenised."""

    tokens: bytes
    """int32[T]."""
    sampled: bytes
    """uint8[T]: 1 where the policy sampled the token."""
    logprobs: bytes
    """float32[T]: behaviour log-prob of sampled tokens, 0 elsewhere."""
    versions: bytes
    """int32[T]: weight version of sampled tokens, -1 elsewhere."""
    opening: list[tuple[str, str]]
    """(role, content) of the messages it began with."""
    turns: list[Turn]
    reward: float

    def __len__(self) -> int:
        return len(self.sampled)

    def encode(self) -> bytes:
        """Return the bytes to store."""
        return _encode(self)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TrajectoryPayload).decode


def decode_trajectory(data: bytes) -> TrajectoryPayload:
    """Return the payload in `data`. Raises `PayloadInvalid`."""
    try:
        payload = _decode(data)
    except msgspec.DecodeError as error:
        raise PayloadInvalid(f"not a trajectory payload: {error}") from None
    count = len(payload.sampled)
    if not (len(payload.tokens) == len(payload.logprobs) == len(payload.versions) == 4 * count):
        raise PayloadInvalid(f"a trajectory payload of {count} tokens has arrays of other lengths")
    return payload


def int32_bytes(values: Iterable[int]) -> bytes:
    """Return `values` as little-endian int32."""
    return _little_endian(array("i", values))


def float32_bytes(values: Iterable[float]) -> bytes:
    """Return `values` as little-endian float32."""
    return _little_endian(array("f", values))


def int32_list(data: bytes) -> list[int]:
    """Return little-endian int32 bytes as a list."""
    return array("i", _native(data)).tolist()


def float32_list(data: bytes) -> list[float]:
    """Return little-endian float32 bytes as a list."""
    return array("f", _native(data)).tolist()


def _little_endian(values: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _native(data: bytes) -> bytes:
    if sys.byteorder == "little":
        return data
    values = array("i", data)
    values.byteswap()
    return values.tobytes()
