"""Read a Perfetto trace with the schema of its package, and check on the way what every reader of traces relies on."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Slice:
    """A slice, or an instant, which ends where it begins."""

    lane: str
    name: str
    begin: int
    end: int = -1
    depth: int = 0
    told: dict[str, Any] = field(default_factory=dict)
    leaves: list[int] = field(default_factory=list)
    """Ids of the flows that leave it."""
    arrives: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (self.end - self.begin) / 1e9


class ReadTrace:
    """A trace, by the paths of its lanes: ``trainer/phases``. Asserts that it is sound.

    Every event is on a track that was described before it; ends match beginnings; times never go back within a
    sequence; nothing is open at the end; a flow leaves once, arrives once at most, and not before it left.
    """

    def __init__(self, content: bytes) -> None:
        self.slices: list[Slice] = []
        self.instants: list[Slice] = []
        self.counters: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self.lanes: dict[int, str] = {}
        self.process = ""
        self._ranks: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._keys: dict[int, str] = {}
        self._open: dict[int, list[Slice]] = defaultdict(list)
        self._counting: set[int] = set()
        self._times: Counter[int] = Counter()
        self._on_their_way: set[int] = set()
        self._left: set[int] = set()
        trace = Trace()
        trace.ParseFromString(content)
        for packet in trace.packet:
            self._packet(packet)
        assert not any(self._open.values()), "slices are open at the end"
        for samples in self.counters.values():
            assert samples == sorted(samples, key=lambda sample: sample[0])

    def on(self, lane: str) -> list[Slice]:
        """Return the slices on a lane, the outermost first."""
        return [found for found in self.slices if found.lane == lane]

    def below(self, group: str) -> list[Slice]:
        """Return the slices on all lanes of a group."""
        return [found for found in self.slices if found.lane.startswith(group + "/")]

    def at(self, counter: str, time: int) -> float | None:
        """Return what a counter is at a time; None before it is told."""
        samples = self.counters.get(counter, [])
        place = bisect_right(samples, time, key=lambda sample: sample[0])
        return samples[place - 1][1] if place else None

    def source(self, flow: int) -> Slice:
        """Return where a flow leaves."""
        (found,) = [one for one in (*self.slices, *self.instants) if flow in one.leaves]
        return found

    def order(self) -> list[str]:
        """Return the lanes in the order in which they are shown."""

        def place(lane: str) -> list[int]:
            parts = lane.split("/")
            return [self._ranks["/".join(parts[: length + 1])] for length in range(len(parts))]

        return sorted(self.lanes.values(), key=place)

    def _packet(self, packet: Any) -> None:
        if packet.HasField("interned_data"):
            self._names |= {one.iid: one.name for one in packet.interned_data.event_names}
            self._keys |= {one.iid: one.name for one in packet.interned_data.debug_annotation_names}
        if packet.HasField("track_descriptor"):
            self._describe(packet.track_descriptor)
        if packet.HasField("track_event"):
            sequence = packet.trusted_packet_sequence_id
            assert packet.timestamp >= self._times[sequence] > -1, "a time goes back"
            self._times[sequence] = packet.timestamp
            self._event(packet.timestamp, packet.track_event)

    def _describe(self, track: Any) -> None:
        assert track.uuid not in self.lanes, "a track was described twice"
        if track.HasField("process"):
            assert not self.process, "a process has two names"
            self.process, self._root = track.process.process_name, track.uuid
            return
        assert track.parent_uuid == self._root or track.parent_uuid in self.lanes, "no parent"
        parent = self.lanes.get(track.parent_uuid, "")
        name = f"{parent}/{track.name}" if parent else track.name
        assert name not in self.lanes.values(), f"two lanes are named {name}, and would be merged"
        self.lanes[track.uuid] = name
        self._ranks[name] = track.sibling_order_rank
        if track.HasField("counter"):
            self._counting.add(track.uuid)

    def _event(self, time: int, event: Any) -> None:
        uuid = event.track_uuid
        lane = self.lanes[uuid]
        assert (uuid in self._counting) == (event.type == TrackEvent.TYPE_COUNTER)
        match event.type:
            case TrackEvent.TYPE_COUNTER:
                whole = event.HasField("counter_value")
                self.counters[lane].append(
                    (time, event.counter_value if whole else event.double_counter_value)
                )
            case TrackEvent.TYPE_SLICE_BEGIN:
                found = Slice(lane, self._names[event.name_iid], time, depth=len(self._open[uuid]))
                self._open[uuid].append(found)
                self.slices.append(found)
                self._tell(found, event)
            case TrackEvent.TYPE_SLICE_END:
                found = self._open[uuid].pop()
                found.end = time
                assert found.end >= found.begin
                self._tell(found, event)
            case TrackEvent.TYPE_INSTANT:
                found = Slice(lane, self._names[event.name_iid], time, time, len(self._open[uuid]))
                self.instants.append(found)
                self._tell(found, event)
            case other:
                raise AssertionError(other)

    def _tell(self, found: Slice, event: Any) -> None:
        for note in event.debug_annotations:
            which = [one for one, _ in note.ListFields() if one.name != "name_iid"]
            value = getattr(note, which[0].name)
            if which[0].name == "array_values":
                value = [one.string_value for one in value]
            found.told[self._keys[note.name_iid]] = value
        for flow in event.flow_ids:
            assert flow not in self._left, "a flow left twice"
            self._left.add(flow)
            self._on_their_way.add(flow)
            found.leaves.append(flow)
        for flow in event.terminating_flow_ids:
            assert flow in self._on_their_way, "a flow arrived that had not left, or a second time"
            self._on_their_way.remove(flow)
            found.arrives.append(flow)
