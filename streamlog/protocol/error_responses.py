"""Error responses: the responses to refused requests, derived from the declarations.

A response has one error code for the whole request, or one for each item of the request. With one
for the whole request, that code is set, and the response is empty otherwise. Without, the response
lists the items of the request, level by level (topics, partitions), each with its identity and the
code. The tables below hold the exceptions, which the declarations don't express.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Final, TypeAlias, TypeVar, cast

import msgspec

from streamlog.protocol.api_table import api_of
from streamlog.protocol.codec import GeneratedSource
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    InitProducerIdRequest,
    InitProducerIdResponse,
    OffsetFetchRequest,
    OffsetFetchResponsePartition,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    ElectLeadersRequest,
)
from streamlog.protocol.messages.produce_and_fetch import PartitionData, PartitionProduceResponse
from streamlog.protocol.messages.sasl_acls_quotas import DescribeClientQuotasResponse
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopicResult,
    DeleteRecordsPartitionResult,
)
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
)
from streamlog.protocol.schema import Field, Message, Struct, StructType
from streamlog.replace import replace

M = TypeVar("M", bound=Message)
CodeOf: TypeAlias = Callable[..., int]
"""Returns the error code of an item. Its arguments are the items of the request that lead to it,
the outermost first: a topic, then a partition."""

_CODES: Final = frozenset({"error_code", "partition_error_code"})
_MESSAGE: Final = "error_message"
_NAMES: Final = frozenset({"name", "topic", "user", "key", "group_id", "transactional_id"})
_NUMBERS: Final = frozenset({"partition_index", "partition", "partition_id", "index"})
_IDENTITY: Final = frozenset(
    {*_NAMES, *_NUMBERS, "topic_id", "producer_id", "resource_type", "resource_name", "entity"}
)
"""Fields that identify the item of a struct. Request and response may call a name or a number
differently, so any field of `_NAMES` corresponds to any other of them, and so do `_NUMBERS`."""
_NOT_ANSWERED: Final = frozenset({"forgotten_topics_data"})
"""Lists of requests whose items have no counterpart in the response."""

_ITEMS_TOO: Final = frozenset({FindCoordinatorRequest, OffsetFetchRequest, ElectLeadersRequest})
"""Requests whose responses have a code for the whole request only in some versions, so both the
code and the items are set."""
_ITEMS_ALONE: Final = frozenset({AddPartitionsToTxnRequest})
"""Requests for several transactions, whose response is combined from the responses for single ones:
a code for the whole request would apply to the other transactions as well."""
_ABSENT: Final[Mapping[StructType, Mapping[str, object]]] = {
    FindCoordinatorResponse: {"node_id": -1, "port": -1},
    FoundCoordinator: {"node_id": -1, "port": -1},
    InitProducerIdResponse: {"producer_epoch": -1},
    DescribeClientQuotasResponse: {"entries": None},
    CreatableTopicResult: {"configs": None},
    PartitionProduceResponse: {"base_offset": -1},
    PartitionData: {"high_watermark": -1, "records": b""},
    OffsetFetchResponsePartition: {"committed_offset": -1},
    DeleteRecordsPartitionResult: {"low_watermark": -1},
}
"""The values that Kafka uses for an absent value, where they differ from the declared default."""

_FENCED_SINCE: Final[Mapping[type[Message], int]] = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 2,
    AddOffsetsToTxnRequest: 2,
    EndTxnRequest: 2,
}
"""The first version whose clients know PRODUCER_FENCED (KIP-588)."""


def error_response(request: Message, code: int, message: str | None = None) -> Message:
    """Return the response to `request` that carries only an error.

    Args:
        request: the refused request.
        code: the error code of the request, and of each of its items.
        message: the reason, for responses that have a field for it.
    """
    if isinstance(request, AlterReplicaLogDirsRequest):
        return _refused_moves(request, code)
    kind = type(request)
    # A code for the whole request makes the items unnecessary, and so the response small.
    plan = _plan(kind, api_of(kind).response)
    if kind in _ITEMS_ALONE:
        plan = plan.without_code()
    elif plan.code and kind not in _ITEMS_TOO:
        plan = plan.without_items()
    return cast("Message", plan.make(request, (), lambda *_: code, message))


def _refused_moves(request: AlterReplicaLogDirsRequest, code: int) -> AlterReplicaLogDirsResponse:
    """Return the response to moves of replicas, which lists topics and not their directories."""
    return AlterReplicaLogDirsResponse(
        results=[
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=[
                    AlterReplicaLogDirPartitionResult(partition_index=number, error_code=code)
                    for number in topic.partitions
                ],
            )
            for directory in request.dirs
            for topic in directory.topics
        ]
    )


def response_by_item(
    request: Message, response: type[M], code_of: CodeOf, message: str | None = None
) -> M:
    """Return the response in which each item of `request` has its own error code.

    Args:
        request: the request.
        response: the class of its response.
        code_of: returns the error code of an item; 0 for none.
        message: the reason, for items that have a field for it.
    """
    plan = _plan(type(request), response).without_code()
    return cast("M", plan.make(request, (), code_of, message))


def add_items(response: Message, other: Message, request: type[Message]) -> None:
    """Append the items of the response `other` to those of `response`.

    Both are responses to requests of the class `request`.
    """
    for items in _plan(request, type(response)).lists:
        there, more = getattr(response, items.name), getattr(other, items.name)
        setattr(response, items.name, [*there, *more])


def error_codes(response: Message) -> list[int]:
    """Return the error codes in a response, of the request and of its items, that are not 0."""
    found: list[int] = []
    _code_reader(type(response))(response, found)
    return found


@cache
def _code_reader(response: type[Message]) -> Callable[[Message, list[int]], None]:
    """Return a function that appends the error codes in a response to a list.

    Generated, as readers and writers are: nearly every response is looked through for nothing, and
    a call for each of its items would cost more than to write them.
    """
    source = GeneratedSource({})
    with source.block("def add(response, found):"):
        _generate_code_lines(source, response, "response")
        source.line("return")
    add = source.function("add", f"{response.__name__} error codes")
    return cast("Callable[[Message, list[int]], None]", add)


def _generate_code_lines(source: GeneratedSource, declared: StructType, value: str) -> None:
    for field in declared.__fields__:
        if field.name in _CODES:
            with source.block(f"if {value}.{field.name}:"):
                source.line(f"found.append({value}.{field.name})")
        elif _has_codes(field) and isinstance(field.item, StructType):
            item = source.name("item")
            with source.block(f"for {item} in {value}.{field.name} or ():"):
                _generate_code_lines(source, field.item, item)


def by_partition(code_of: Callable[[str, int], int]) -> CodeOf:
    """Convert a function of topic and partition number to a function of the items of a request."""
    return lambda *path: code_of(path[-2].name, getattr(path[-1], "partition_index", path[-1]))


def code_for(request: Message, version: int, code: int) -> int:
    """Return the error code that clients of this version understand.

    Kafka's consumers before 3.9 give up at COORDINATOR_NOT_AVAILABLE in an OffsetFetch. At
    NOT_COORDINATOR, all consumers look for the coordinator and repeat the request.
    """
    kind = type(request)
    if code == ErrorCode.PRODUCER_FENCED and version < _FENCED_SINCE.get(kind, 0):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code == ErrorCode.COORDINATOR_NOT_AVAILABLE and kind is OffsetFetchRequest:
        return ErrorCode.NOT_COORDINATOR
    return code


# ---- plans ----


class _Plan(msgspec.Struct, frozen=True):
    """How to make a struct of a response from the struct, or the scalar, that it answers."""

    struct: StructType
    absent: Mapping[str, object]
    code: str | None
    """The name of the error code's field; None if the struct has none."""
    has_message: bool
    identity: tuple[tuple[str, str | None], ...]
    """Fields of the response and of the request's item; None if that item is a scalar."""
    lists: tuple[_List, ...]

    def make(
        self, asked: object, path: tuple[object, ...], code_of: CodeOf, message: str | None
    ) -> Struct:
        values = dict(self.absent)
        for name, source in self.identity:
            values[name] = asked if source is None else getattr(asked, source)
        if self.code is not None:
            values[self.code] = code_of(*path)
            if self.has_message and message is not None:
                values[_MESSAGE] = message
        for items in self.lists:
            values[items.name] = items.make(asked, path, code_of, message)
        made: Struct = self.struct(**values)
        return made

    def without_code(self) -> _Plan:
        return replace(self, absent={}, code=None)

    def without_items(self) -> _Plan:
        return replace(self, lists=())


class _List(msgspec.Struct, frozen=True):
    """A list of a response, and the lists of the request whose items it answers."""

    name: str
    sources: tuple[tuple[str, _Plan], ...]
    is_merged: bool
    """Whether an item that is in several lists of a request gets one answer."""

    def make(
        self, asked: object, path: tuple[object, ...], code_of: CodeOf, message: str | None
    ) -> list[Struct]:
        made = [
            plan.make(each, (*path, each), code_of, message)
            for source, plan in self.sources
            for each in getattr(asked, source) or ()
        ]
        if not self.is_merged:
            return made
        # By identity, so that the last answer of an item replaces the others.
        (_, plan), *_ = self.sources
        names = [name for name, _ in plan.identity]
        return [*{tuple(getattr(each, name) for name in names): each for each in made}.values()]


@cache
def _plan(request: StructType, response: StructType) -> _Plan:
    return _plan_of(response, request.__fields__, is_item=False)


def _plan_of(struct: StructType, asked: Sequence[Field] | str, *, is_item: bool) -> _Plan:
    """Return the plan of `struct` for an item with the fields, or of the scalar kind, `asked`."""
    code = next((field.name for field in struct.__fields__ if field.name in _CODES), None)
    return _Plan(
        struct=struct,
        absent=_ABSENT.get(struct, {}),
        code=code,
        has_message=any(field.name == _MESSAGE for field in struct.__fields__),
        identity=_identity(struct, asked) if is_item else (),
        # An item with a code has the last level: lists below it stay empty.
        lists=() if isinstance(asked, str) or (is_item and code) else _lists(struct, asked),
    )


def _identity(
    struct: StructType, asked: Sequence[Field] | str
) -> tuple[tuple[str, str | None], ...]:
    fields = [field for field in struct.__fields__ if field.name in _IDENTITY]
    if isinstance(asked, str):
        return tuple((field.name, None) for field in fields if field.kind == asked)[:1]
    found: list[tuple[str, str | None]] = []
    names = [field.name for field in asked if field.name in _IDENTITY]
    for field in fields:
        alike = next((each for each in (_NAMES, _NUMBERS) if field.name in each), frozenset())
        others = (name for name in names if name in alike)
        source = field.name if field.name in names else next(others, None)
        if source is not None:
            found.append((field.name, source))
    return tuple(found)


def _lists(struct: StructType, asked: Sequence[Field]) -> tuple[_List, ...]:
    """Pair the lists of a response with those of its request, in the order of both."""
    answered = [field for field in struct.__fields__ if _has_codes(field)]
    sources = [
        field for field in asked if field.kind == "array" and field.name not in _NOT_ANSWERED
    ]
    # Equal numbers of lists correspond by position. Otherwise the first list of the response
    # answers all lists of the request.
    if len(answered) == len(sources):
        return tuple(
            _list(field, [source]) for field, source in zip(answered, sources, strict=True)
        )
    return tuple(_list(field, sources) for field in answered[:1] if sources)


def _list(field: Field, sources: Sequence[Field]) -> _List:
    item = cast("StructType", field.item)
    plans = [
        (
            each.name,
            _plan_of(
                item,
                each.item.__fields__ if isinstance(each.item, StructType) else str(each.item),
                is_item=True,
            ),
        )
        for each in sources
    ]
    # Lists of disjoint versions are never in one request; the others may name an item twice.
    first, *others = (each.versions for each in sources)
    is_merged = any((first & other).first <= (first & other).last for other in others)
    return _List(field.name, tuple(plans), is_merged)


def _has_codes(field: Field) -> bool:
    """Whether a list has items with error codes, at any depth."""
    if field.kind != "array" or not isinstance(field.item, StructType):
        return False
    inner = field.item.__fields__
    return any(each.name in _CODES or _has_codes(each) for each in inner)
