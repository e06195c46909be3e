"""Handlers of the broker and of its controller, registered for requests that they don't answer."""

from __future__ import annotations

import asyncio

from streamlog.broker.handlers import Handler, entry, shared_entry
from streamlog.broker.quorum.controller.decision import Decision, decides, respond
from streamlog.broker.security.principals import RequestContext
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataResponse
from streamlog.protocol.messages.produce_and_fetch import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from streamlog.protocol.schema import Message


def fetch(_: FetchRequest, __: RequestContext) -> FetchResponse:
    return FetchResponse()


def fetch_later(_: FetchRequest, __: RequestContext) -> asyncio.Future[FetchResponse]:
    raise NotImplementedError


def offsets_later(_: FetchRequest, __: RequestContext) -> asyncio.Future[ListOffsetsResponse]:
    raise NotImplementedError


def fetch_or_offsets(_: FetchRequest | ListOffsetsRequest, __: RequestContext) -> FetchResponse:
    return FetchResponse()


def produce(_: ProduceRequest, __: RequestContext) -> ProduceResponse | None:
    return None


def silent(_: FetchRequest, __: RequestContext) -> FetchResponse | None:
    return None


def something(_: Message, __: RequestContext) -> Message:
    return FetchResponse()


def without_context(_: FetchRequest) -> FetchResponse:
    return FetchResponse()


def wrapped(handler: Handler[FetchRequest, FetchResponse]) -> Handler[FetchRequest, FetchResponse]:
    return handler


def create(_: CreateTopicsRequest, version: int, now_ms: int) -> Decision[CreateTopicsResponse]:
    return respond(CreateTopicsResponse(throttle_time_ms=version + now_ms))


# E: expected "Callable[[ListOffsetsRequest, RequestContext], ListOffsetsResponse | Future[
entry(ListOffsetsRequest, fetch)

# E: expected "Callable[[ListOffsetsRequest, RequestContext], ListOffsetsResponse | Future[
entry(ListOffsetsRequest, fetch_or_offsets)

# E: has incompatible type "Callable[[FetchRequest, RequestContext], Future[ListOffsetsResponse]]"
entry(FetchRequest, offsets_later)

# E: has incompatible type "Callable[[Message, RequestContext], Message]"
entry(FetchRequest, something)

# E: has incompatible type "Callable[[FetchRequest, RequestContext], FetchResponse | None]"
entry(FetchRequest, silent)

# E: has incompatible type "Callable[[FetchRequest], FetchResponse]"
entry(FetchRequest, without_context)

# E: Incompatible return value type (got "FetchResponse"
entry(MetadataRequest, lambda _, __: FetchResponse())

# E: "MetadataRequest" has no attribute "isolation_level"
entry(MetadataRequest, lambda request, _: MetadataResponse(controller_id=request.isolation_level))

# E: Argument 1 to "entry" has incompatible type "type[FetchResponse]"
entry(FetchResponse, something)

# E: expected "Callable[[ProduceRequest, RequestContext], Message | Future[Message]]"
shared_entry(ProduceRequest, fetch)

# E: Argument 1 to "wrapped" has incompatible type
wrapped(produce)

# E: expected "Callable[[DeleteTopicsRequest, int, int], Decision[DeleteTopicsResponse]]"
decides(DeleteTopicsRequest, create)

# E: "DeleteTopicsResponse"; expected "CreateTopicsResponse"
decides(CreateTopicsRequest, lambda _, __, ___: respond(DeleteTopicsResponse()))

entry(FetchRequest, fetch)
entry(FetchRequest, fetch_later)
entry(FetchRequest, fetch_or_offsets)
entry(FetchRequest, wrapped(fetch))
entry(ProduceRequest, produce)
shared_entry(ListOffsetsRequest, something)
decides(CreateTopicsRequest, create)
