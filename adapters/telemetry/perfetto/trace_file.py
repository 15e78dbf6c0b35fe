"""Tracks, slices, counters and flows as a stream of Perfetto's packets.

The only module that knows the protobuf schema, which the package ``perfetto`` brings
(https://perfetto.dev/docs/reference/synthetic-track-event). Packets are serialised some hundreds at a time: a
trace is the concatenation of its parts, and a message for every packet, as `StreamingTraceProtoBuilder` of that
package makes, takes 1.6 times as long. Names are written once and then referred to by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import IO, Any

from ...wording import require
from . import MADE_BY

SCHEMA = "perfetto.protos.perfetto.trace.perfetto_trace_pb2"
PACKETS_PER_WRITE = 512
MAIN_SEQUENCE = 1

Told = Mapping[str, Any]
"""What is said of a slice or an instant: numbers, texts, truths, or tuples of texts; None is left out."""

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4  # TrackEvent.Type
_CLEARED, _NEEDED = 1, 2  # TracePacket.SequenceFlags: of the names that were written before
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering
_REALTIME, _BOOTTIME = 1, 6  # BuiltinClock


class TraceFile:
    """Writes one trace to `file`, all of whose lanes are of one process. Raises `MissingExtra`.

    Whoever writes sets `now` before the first packet, and never back. Ids of tracks are numbers in the order in which
    they are made, so the same calls give the same bytes.
    """

    def __init__(self, file: IO[bytes], now: int) -> None:
        self._schema = require(SCHEMA, "view")
        self._file = file
        self._trace = self._schema.Trace()
        self._add = self._trace.packet.add
        self._waiting = 0
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._children: dict[int, int] = {}
        self._sequences: dict[int, int] = {}
        self.tracks = 0
        self.slices = 0
        self.size_bytes = 0
        self.now = now
        """UTC nanoseconds of what is written next."""
        self._say_clock()
        self.root = 1
        self._say_process()

    def name_process(self, name: str) -> None:
        """Say whose lanes these are; once, at any time. The page names a process by the first name that it meets."""
        self._say_process().process.process_name = name

    def group(self, name: str, about: str = "") -> int:
        """Return a new track that holds others, in the order in which they are made."""
        uuid: int = self._describe(name, self.root, about, holds=True).uuid
        return uuid

    def track(self, name: str, parent: int, about: str = "", rank: int | None = None) -> int:
        """Return a new track for slices and instants. Without a `rank` it stands behind those that were made before."""
        uuid: int = self._describe(name, parent, about, rank=rank).uuid
        return uuid

    def counter(
        self, name: str, parent: int, unit: str = "", about: str = "", rank: int | None = None
    ) -> CounterTrack:
        """Return a new track for a number, with its `rank` as for a track."""
        track = self._describe(name, parent, about, rank=rank)
        track.counter.SetInParent()
        if unit:
            track.counter.unit_name = unit
        return CounterTrack(self, track.uuid)

    def begin(self, track: int, name: str, told: Told | None = None, ends: Iterable[int] = ()) -> None:
        """Begin a slice, at which the flows `ends` arrive."""
        packet = self._packet(track, _BEGIN)
        event = packet.track_event
        event.name_iid = self._names.get(name) or self._name(packet, name)
        if ends:
            event.terminating_flow_ids.extend(ends)
        if told:
            self._tell(packet, event, told)
        self.slices += 1

    def end(self, track: int, told: Told | None = None, flows: Iterable[int] = ()) -> None:
        """End the slice that was begun last on `track`; the `flows` leave it."""
        packet = self._packet(track, _END)
        event = packet.track_event
        if flows:
            event.flow_ids.extend(flows)
        if told:
            self._tell(packet, event, told)

    def instant(self, track: int, name: str, told: Told | None = None, flows: Iterable[int] = ()) -> None:
        """Mark this moment; the `flows` leave it."""
        packet = self._packet(track, _INSTANT)
        event = packet.track_event
        event.name_iid = self._names.get(name) or self._name(packet, name)
        if flows:
            event.flow_ids.extend(flows)
        if told:
            self._tell(packet, event, told)

    def count(self, track: int, value: float) -> None:
        """Say the value that a counter has from now on."""
        event = self._packet(track, _COUNTER).track_event
        if type(value) is int:
            event.counter_value = value
        else:
            event.double_counter_value = value

    def count_since(self, track: int, value: float, since: int) -> None:
        """Say the value that a counter has had since an earlier time.

        The packets of a sequence are in order of time. So such a counter has one of its own, which needs no names.
        """
        packet = self._new()
        packet.timestamp = self._sequences[track] = max(since, self._sequences.get(track, 0))
        packet.trusted_packet_sequence_id = MAIN_SEQUENCE + track
        event = packet.track_event
        event.type, event.track_uuid, event.double_counter_value = _COUNTER, track, value

    def flush(self) -> None:
        """Hand all that was said to the file."""
        content = self._trace.SerializeToString()
        self._file.write(content)
        self.size_bytes += len(content)
        self._trace = self._schema.Trace()
        self._add = self._trace.packet.add
        self._waiting = 0

    def _new(self) -> Any:
        if self._waiting == PACKETS_PER_WRITE:
            self.flush()
        self._waiting += 1
        return self._add()

    def _packet(self, track: int, kind: int) -> Any:
        packet = self._new()
        packet.timestamp = self.now
        packet.trusted_packet_sequence_id = MAIN_SEQUENCE
        packet.sequence_flags = _NEEDED
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return packet

    def _tell(self, packet: Any, event: Any, told: Told) -> None:
        keys, add = self._keys, event.debug_annotations.add
        for key, value in told.items():
            if value is None:
                continue
            note = add()
            note.name_iid = keys.get(key) or self._key(packet, key)
            kind = type(value)
            if kind is str:
                note.string_value = value
            elif kind is int:
                note.int_value = value
            elif kind is float:
                note.double_value = value
            elif kind is bool:
                note.bool_value = value
            else:
                for text in value:
                    note.array_values.add().string_value = text

    def _name(self, packet: Any, name: str) -> int:
        number = self._names[name] = len(self._names) + 1
        packet.interned_data.event_names.add(iid=number, name=name)
        return number

    def _key(self, packet: Any, key: str) -> int:
        number = self._keys[key] = len(self._keys) + 1
        packet.interned_data.debug_annotation_names.add(iid=number, name=key)
        return number

    def _describe(
        self, name: str, parent: int, about: str, *, holds: bool = False, rank: int | None = None
    ) -> Any:
        self.tracks += 1
        packet = self._new()
        packet.trusted_packet_sequence_id = MAIN_SEQUENCE
        track = packet.track_descriptor
        track.uuid, track.name, track.parent_uuid = self.root + self.tracks, name, parent
        self._children[parent] = self._children.get(parent, 0) + 1
        track.sibling_order_rank = self._children[parent] if rank is None else rank
        if about:
            track.description = about
        if holds:
            track.child_ordering = _EXPLICIT
        return track

    def _say_clock(self) -> None:
        """Say that times are UTC, so that the page can show them as that, and that no names are known yet."""
        packet = self._new()
        packet.timestamp = self.now
        packet.trusted_packet_sequence_id = MAIN_SEQUENCE
        packet.sequence_flags = _CLEARED
        packet.first_packet_on_sequence = True
        snapshot = packet.clock_snapshot
        snapshot.primary_trace_clock = _BOOTTIME
        for clock in (_BOOTTIME, _REALTIME):
            snapshot.clocks.add(clock_id=clock, timestamp=self.now)

    def _say_process(self) -> Any:
        packet = self._new()
        packet.trusted_packet_sequence_id = MAIN_SEQUENCE
        track = packet.track_descriptor
        track.uuid, track.child_ordering, track.description = self.root, _EXPLICIT, MADE_BY
        track.process.pid = 1
        return track


class CounterTrack:
    """A number over time; it is written when it changes."""

    __slots__ = ("_file", "_value", "track")

    def __init__(self, file: TraceFile, track: int) -> None:
        self._file = file
        self._value: float | None = None
        self.track = track

    def set(self, value: float) -> None:
        """Say what the number is from now on."""
        if value != self._value:
            self._value = value
            self._file.count(self.track, value)

    def was(self, value: float, since: int) -> None:
        """Say what the number has been since an earlier time; a counter is told by this, or by `set`, throughout."""
        self._file.count_since(self.track, value, since)
