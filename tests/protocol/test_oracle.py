"""Our codec and kafka-python's, which share no code, agree on every message."""

from __future__ import annotations

import importlib
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.protocol.api_table import APIS, OWN_KEY, Api
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.frame import decode_request, encode_request, encode_response
from streamlog.protocol.messages.cluster_metadata import ApiVersionsResponse
from streamlog.protocol.schema import Message, Struct
from tests.for_each import for_each
from tests.protocol.strategies import every_version, few, messages

pytest.importorskip("kafka.protocol")

THEIRS: dict[str, Any] = {
    name: value
    for module in ("admin", "consumer", "metadata", "producer", "sasl")
    for name, value in vars(importlib.import_module(f"kafka.protocol.{module}")).items()
}


def shared(name: str) -> bool:
    """Return whether both codecs can be compared on a field.

    Authorized operations are a number here and a set of bits in kafka-python; some fields are ours.
    """
    return not name.endswith("authorized_operations") and name not in OWN_FIELDS


OWN_FIELDS = {
    "coordinator_id",
    "fetch_number",
    "include_report",
    "is_rejoining",
    "known_high_watermark",
    "mark_after_ms",
    "mark_clock",
    "mark_to_ms",
    "rejoin_id",
    "rejoined",
    "report",
}
"""Fields with tags from `OWN_TAG` up, which kafka-python skips."""


NO_ID = bytes(16)
"""The topic id that means none."""


def plain(value: Any, version: int) -> Any:
    """Return the fields of this version, in comparable values."""
    match value:
        case Struct():
            names = [field.name for field in value.__fields__ if version in field.versions]
            return {name: plain(getattr(value, name), version) for name in names if shared(name)}
        case list():
            return [plain(item, version) for item in value]
        case memoryview():
            return bytes(value)
        case bytes() if value == NO_ID:
            return None  # As kafka-python reads it.
        case _:
            return value


def comparable(value: Any) -> Any:
    """Return kafka-python's values in comparable types."""
    match value:
        case dict():
            return {name: comparable(item) for name, item in value.items() if shared(name)}
        case list() | tuple():
            return [comparable(item) for item in value]
        case uuid.UUID():
            return value.bytes
        case memoryview() | bytearray():
            return bytes(value)
        case bytes() if value == NO_ID:
            return None
        case _:
            return value


@pytest.mark.slow
@every_version
@few
@given(drawn=st.data())
def test_both_codecs_read_each_others_messages(
    message_type: type[Message], version: int, drawn: st.DataObject
) -> None:
    their_class = THEIRS.get(message_type.__name__)
    if their_class is None:
        pytest.skip("kafka-python does not have it")
    message = drawn.draw(messages(message_type, version))
    if isinstance(message, ApiVersionsResponse):
        # With any error, kafka-python expects version 0.
        message.error_code = 0
    ours = plain(message, version)
    theirs = their_class.decode(encode(message, version), version=version, header=False)
    assert comparable(theirs.to_dict(json=False)) == ours
    if hasattr(their_class, "encode_header_into"):
        # Their constructor sets it, but their decoder does not call the constructor.
        theirs._header = None
    again = decode(message_type, version, bytes(theirs.encode(version=version, header=False)))
    assert plain(again, version) == ours


REQUESTS = [
    (api, version)
    for api in APIS.values()
    if api.request.__name__ in THEIRS
    for version in range(api.request.__versions__.first, api.max_version + 1)
]
BETWEEN_BROKERS = {
    "AllocateProducerIds",
    "AlterPartition",
    "BeginQuorumEpoch",
    "BrokerHeartbeat",
    "BrokerRegistration",
    "EndQuorumEpoch",
    "FetchSnapshot",
    "UnregisterBroker",
    "Vote",
}
UNKNOWN_TO_THEM = (
    {"ConsumerGroupHeartbeat", "ConsumerGroupDescribe"}
    | {"GetTelemetrySubscriptions", "PushTelemetry"}
    | BETWEEN_BROKERS
    | {api.name for api in APIS.values() if api.key >= OWN_KEY}
)


def test_kafka_python_lacks_only_the_listed_requests() -> None:
    assert {api.name for api in APIS.values()} - {
        api.name for api, _ in REQUESTS
    } == UNKNOWN_TO_THEM


@for_each(("api", "version"), REQUESTS)
@for_each("client_id", [None, "", "us"])
def test_both_codecs_write_equal_headers(api: Api, version: int, client_id: str | None) -> None:
    request = THEIRS[api.request.__name__](version=version)
    request.with_header(correlation_id=77, client_id=client_id)
    frame = bytes(request.encode(version=version, header=True, framed=True))
    ours = encode_request(api, version, 77, client_id, decode_request(frame[4:]).message)
    assert b"".join(ours) == frame

    buffers = encode_response(api, version, 78, api.response())
    response = THEIRS[api.response.__name__].decode(
        b"".join(buffers), version=version, header=True, framed=True
    )
    assert response.header.correlation_id == 78
