"""Translation of the quorum's messages into the protocol's structs, derived from their fields.

A field of a Raft message goes into the protocol's field of its name: in the message itself
(`replica_id`), in the struct of its one partition, or in that struct's `current_leader`. A Raft
field without a counterpart raises TypeError at import. `UNUSED` lists the protocol's fields that
Raft does not have; a test compares the two.

Rules of this module: some values have another form on the wire, see `_write_value` and
`_read_value`. An unknown leader is None here and -1 on the wire. Kafka's requests list topics and
partitions; the quorum has one of each, partition 0 of `__cluster_metadata`, and refuses requests
for others.

Not done here: the dispatch of requests by API key (`apis/quorum`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, cast

import msgspec

from streamlog.broker.quorum.raft import raft_messages as raft
from streamlog.broker.quorum.raft.log_entries import entries_of
from streamlog.broker.quorum.raft.raft_messages import RaftSnapshotId
from streamlog.broker.replication.replica_state import Diverging
from streamlog.errors import CorruptData
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    DivergingEpoch,
    FetchingReplica,
    FetchRequest,
    FetchResponse,
    SnapshotId,
)
from streamlog.protocol.messages.quorum_messages import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchedSnapshotId,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    PreferredCandidate,
    VoteRequest,
    VoteResponse,
)
from streamlog.protocol.schema import Message, Piece, Records, Struct, StructType
from streamlog.replace import replace

METADATA_TOPIC: Final = "__cluster_metadata"
METADATA_TOPIC_ID: Final = bytes(15) + b"\x01"
"""The topic id that Kafka reserves for the metadata log."""
FETCH_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of entries in one response; a first entry that is larger is sent whole."""
SNAPSHOT_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a snapshot in one response."""

Asked: TypeAlias = (
    VoteRequest
    | BeginQuorumEpochRequest
    | EndQuorumEpochRequest
    | FetchSnapshotRequest
    | FetchRequest
)
"""The protocol's requests of one member to another."""

UNUSED: Final[dict[type[raft.Request | raft.Response], frozenset[str]]] = {
    raft.RaftVoteRequest: frozenset(
        {"partition_index", "candidate_directory_id", "voter_directory_id"}
    ),
    raft.RaftVoteResponse: frozenset({"partition_index", "error_code"}),
    raft.BeginEpochRequest: frozenset({"partition_index", "voter_directory_id"}),
    raft.EndEpochRequest: frozenset({"partition_index", "preferred_candidates"}),
    raft.EpochResponse: frozenset({"partition_index"}),
    raft.RaftFetchRequest: frozenset(
        {
            "partition",
            "log_start_offset",
            "partition_max_bytes",
            "fetch_number",
            "mark_after_ms",
            "mark_to_ms",
            "mark_clock",
        }
    ),
    raft.RaftFetchResponse: frozenset(
        {
            "partition_index",
            "last_stable_offset",
            "log_start_offset",
            "aborted_transactions",
            "preferred_read_replica",
        }
    ),
    raft.SnapshotRequest: frozenset({"partition", "replica_directory_id"}),
    raft.SnapshotResponse: frozenset({"index"}),
}
"""The fields of the protocol's partition structs that Raft's messages do not have. Of these,
`to_wire` sets `preferred_candidates` (version 1) and `partition_max_bytes`."""

_HINTS: Final[dict[int, str]] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "it belongs to another cluster: check its address in"
    " controller.quorum.voters, and the data directory of this node",
    ErrorCode.INVALID_VOTER_KEY: "it has another node.id than the one that"
    " controller.quorum.voters gives for its address",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "it does not allow this node CLUSTER_ACTION, which"
    " nodes need: add this node's principal to its super.users",
}
"""What to check when a member refuses a request."""


class WireForm:
    """The layout of one of Raft's messages in one of the protocol's.

    Raises:
        TypeError: the message has a field without a counterpart in the protocol.
    """

    def __init__(self, message: type[Message], content: type[raft.Request | raft.Response]) -> None:
        self.message = message
        self.content = content
        self._make: Callable[..., raft.Request | raft.Response] = content
        self._topics = "topics" if "topics" in _names(message) else "responses"
        self._topic = _struct_of(message, self._topics)
        self.partition = _struct_of(self._topic, "partitions")
        has_leader = "current_leader" in _names(self.partition)
        self._leader = _struct_of(self.partition, "current_leader") if has_leader else None
        # The partition first: some fields, such as `error_code`, exist in the message too.
        holders = [self.partition, message, *([self._leader] if self._leader else [])]
        self._fields: list[tuple[str, type[Struct], str]] = []
        """Each field of `content`: its name, the struct that holds it, and its name there."""
        for name in _field_names(content):
            wire_name = "records" if name == "entries" else name
            holder = next((each for each in holders if wire_name in _names(each)), None)
            if holder is None:
                raise TypeError(f"{content.__name__}.{name} has no field in {message.__name__}")
            self._fields.append((name, holder, wire_name))

    @property
    def unused(self) -> frozenset[str]:
        """The fields of the partition's struct that Raft's message does not have."""
        used = {name for _, holder, name in self._fields if holder is self.partition}
        return frozenset(_names(self.partition)) - used - {"current_leader"}

    def write(self, content: raft.Request | raft.Response) -> Message:
        """Return the protocol's message."""
        message, partition = self.message(), self.partition()
        holders: dict[type[Struct], Struct] = {self.message: message, self.partition: partition}
        if self._leader is not None:
            holders[self._leader] = leader = self._leader()
            _fill(partition, current_leader=leader)
        for name, holder, wire_name in self._fields:
            value = _write_value(name, getattr(content, name), self.partition)
            _fill(holders[holder], **{wire_name: value})
        topic = self._topic()
        _fill(topic, partitions=[partition])
        for name in _names(self._topic):
            if name in _TOPIC_NAMES:
                _fill(topic, **{name: _TOPIC_NAMES[name]})
        _fill(message, **{self._topics: [topic]})
        return message

    def read(self, message: Message) -> raft.Request | raft.Response:
        """Return Raft's message.

        Raises:
            IndexError: the message contains no partition.
            CorruptData: its entries are damaged.
        """
        partition = getattr(message, self._topics)[0].partitions[0]
        holders: dict[type[Struct], Struct] = {self.message: message, self.partition: partition}
        if self._leader is not None:
            leader = partition.current_leader
            # A response that names no leader knows none, whatever the struct's default is.
            holders[self._leader] = leader or _fill(self._leader(), leader_id=-1)
        return self._make(
            **{
                name: _read_value(name, getattr(holders[holder], wire_name))
                for name, holder, wire_name in self._fields
            }
        )


_TOPIC_NAMES: Final = {
    "topic": METADATA_TOPIC,
    "topic_name": METADATA_TOPIC,
    "name": METADATA_TOPIC,
    "topic_id": METADATA_TOPIC_ID,
}


def _names(struct: StructType) -> tuple[str, ...]:
    return tuple(each.name for each in struct.__fields__)


def _field_names(content: type[raft.Request | raft.Response]) -> tuple[str, ...]:
    return tuple(each.name for each in msgspec.structs.fields(content))


def _struct_of(struct: StructType, name: str) -> type[Struct]:
    """Return the type of a struct field, or of the elements of a list of structs."""
    item = next(each.item for each in struct.__fields__ if each.name == name)
    if not isinstance(item, StructType) or not issubclass(item, Struct):
        raise TypeError(f"{struct.__name__}.{name} contains no struct")
    return item


def _fill(struct: Struct, **values: object) -> Struct:
    for name, value in values.items():
        setattr(struct, name, value)
    return struct


def _write_value(name: str, value: object, partition: type[Struct]) -> object:
    match name, value:
        case "leader_id", None:
            return -1
        case _, RaftSnapshotId() | Diverging():
            struct = _struct_of(partition, name)()
            return _fill(struct, epoch=value.epoch, end_offset=value.end_offset)
        case "entries", tuple():
            return [entry.payload for entry in value]
        case "preferred_successors", tuple():
            return list(value)
    return value


def _read_value(name: str, value: object) -> object:
    read = value
    match name, value:
        case "leader_id", int() if value < 0:
            read = None
        case "snapshot_id", SnapshotId() | FetchedSnapshotId():
            read = RaftSnapshotId(value.end_offset, value.epoch)
        case "diverging_epoch", DivergingEpoch():
            read = Diverging(value.epoch, value.end_offset)
        case "entries", _:
            read = tuple(entries_of(_join(cast("Records | None", value))))
        case "unaligned_records", _:
            read = _join(cast("Records | None", value))
        case "preferred_successors", list():
            read = tuple(value)
    return read


def _join(records: Records | None) -> bytes:
    if isinstance(records, list):
        return b"".join(records)
    return b"" if records is None else _read_piece(records)


def _read_piece(piece: Piece) -> bytes:
    return bytes(piece) if isinstance(piece, bytes | bytearray | memoryview) else piece.read()


_REQUESTS: Final = [
    WireForm(VoteRequest, raft.RaftVoteRequest),
    WireForm(BeginQuorumEpochRequest, raft.BeginEpochRequest),
    WireForm(EndQuorumEpochRequest, raft.EndEpochRequest),
    WireForm(FetchRequest, raft.RaftFetchRequest),
    WireForm(FetchSnapshotRequest, raft.SnapshotRequest),
]
_RESPONSES: Final = [
    WireForm(VoteResponse, raft.RaftVoteResponse),
    WireForm(BeginQuorumEpochResponse, raft.EpochResponse),
    WireForm(EndQuorumEpochResponse, raft.EpochResponse),
    WireForm(FetchResponse, raft.RaftFetchResponse),
    WireForm(FetchSnapshotResponse, raft.SnapshotResponse),
]
FORMS: Final = (*_REQUESTS, *_RESPONSES)
_BY_MESSAGE: Final = {form.message: form for form in FORMS}
_BY_REQUEST: Final = {form.content: form for form in _REQUESTS}
_ANSWER_TO: Final = {
    asked.message: answer for asked, answer in zip(_REQUESTS, _RESPONSES, strict=True)
}


def about_quorum(request: FetchRequest) -> bool:
    """Return whether a Fetch asks for the metadata log, by name or by topic id."""
    return len(request.topics) == 1 and (
        request.topics[0].topic == METADATA_TOPIC or request.topics[0].topic_id == METADATA_TOPIC_ID
    )


def request_to_wire(request: raft.Request, *, cluster_id: str, to: int, wait_ms: int) -> Asked:
    """Return the protocol's request to node `to`.

    Args:
        request: the request.
        cluster_id: the sender's cluster; a node of another cluster refuses the request.
        to: the receiver, which refuses a request that is meant for another node.
        wait_ms: how long the leader holds back the response to a fetch without news.
    """
    message = _BY_REQUEST[type(request)].write(request)
    match message:
        case VoteRequest() | BeginQuorumEpochRequest():
            message.voter_id = to
        case EndQuorumEpochRequest(topics=[topic]):
            # Version 0 has a list of ids, version 1 a list of structs: the encoder takes its own.
            (end,) = topic.partitions
            end.preferred_candidates = [
                PreferredCandidate(candidate_id=each) for each in end.preferred_successors
            ]
        case FetchRequest(topics=[topic]):
            topic.partitions[0].partition_max_bytes = FETCH_BYTES_MAX
            # From version 15 on the replica's id is in a struct; earlier ones have the plain field.
            message.replica_state = FetchingReplica(replica_id=message.replica_id)
            message.max_wait_ms, message.min_bytes = wait_ms, 1
        case FetchSnapshotRequest():
            message.max_bytes = SNAPSHOT_BYTES_MAX
        case _:
            raise TypeError(f"{type(message).__name__} is not a request of the quorum")
    message.cluster_id = cluster_id
    return message


def request_of_wire(request: Asked) -> raft.Request:
    """Return the request that another member sent.

    Raises:
        CorruptData: the request does not name exactly one partition.
    """
    if len(request.topics) != 1 or len(request.topics[0].partitions) != 1:
        raise CorruptData(f"{type(request).__name__} does not name exactly one partition")
    content = cast("raft.Request", _BY_MESSAGE[type(request)].read(request))
    match request, content:
        case EndQuorumEpochRequest(topics=[topic]), raft.EndEpochRequest():
            candidates = [each.candidate_id for each in topic.partitions[0].preferred_candidates]
            if candidates:
                return replace(content, preferred_successors=tuple(candidates))
        case FetchRequest(replica_state=FetchingReplica() as state), raft.RaftFetchRequest():
            return replace(content, replica_id=state.replica_id)
    return content


def response_to_wire(request: Asked, response: raft.Response) -> Message:
    """Return the protocol's response to `request`."""
    return _ANSWER_TO[type(request)].write(response)


def response_of_wire(response: Message) -> raft.Response:
    """Return the response of another member.

    Raises:
        CorruptData: it is not a response of the quorum, it contains an error instead of a
            partition, or its entries are damaged.
    """
    form = _BY_MESSAGE.get(type(response))
    if form is None or form not in _RESPONSES:
        raise CorruptData(f"{type(response).__name__} is not a response of a quorum's member")
    try:
        return cast("raft.Response", form.read(response))
    except IndexError:
        code = getattr(response, "error_code", 0)
        if code in _HINTS:
            raise CorruptData(_HINTS[code]) from None
        raise CorruptData(
            f"{type(response).__name__} with error {code} does not name the metadata log"
        ) from None
