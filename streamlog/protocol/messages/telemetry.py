"""Metrics of clients (KIP-714): which ones a broker wants, and the clients' pushes.

Declarations only, see `schema`.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import (
    Message,
    boolean,
    int8,
    int8_array,
    int16,
    int32,
    opaque,
    string_array,
    uuid,
)


class GetTelemetrySubscriptionsRequest(Message, versions="0", flexible_from=0):
    """Ask which metrics to push."""

    __response__: ClassVar[GetTelemetrySubscriptionsResponse]
    # All zeros: the broker chooses an id, which the client keeps for its life, at all brokers.
    client_instance_id: bytes = uuid("0+")


class GetTelemetrySubscriptionsResponse(Message, versions="0", flexible_from=0):
    """The metrics that the client pushes, and how.

    `requested_metrics` are prefixes of names; empty: none; `*`: all.

    Errors: THROTTLING_QUOTA_EXCEEDED (before the next push is due).
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    client_instance_id: bytes = uuid("0+")
    # A hash of the subscriptions; a push repeats it, so the broker sees whether it is outdated.
    subscription_id: int = int32("0+")
    # The preferred one first; see `Compression` for the numbers.
    accepted_compression_types: list[int] = int8_array("0+")
    push_interval_ms: int = int32("0+")
    telemetry_max_bytes: int = int32("0+")
    # Sums count from the last push, not from the start.
    delta_temporality: bool = boolean("0+")
    requested_metrics: list[str] = string_array("0+")


class PushTelemetryRequest(Message, versions="0", flexible_from=0):
    """Push metrics: OpenTelemetry's `MetricsData` as protobuf, compressed."""

    __response__: ClassVar[PushTelemetryResponse]
    client_instance_id: bytes = uuid("0+")
    subscription_id: int = int32("0+")
    # The client closes: it pushes before the end of the interval, for the last time.
    terminating: bool = boolean("0+")
    compression_type: int = int8("0+")
    metrics: bytes = opaque("0+")


class PushTelemetryResponse(Message, versions="0", flexible_from=0):
    """Whether the metrics were taken.

    Errors: INVALID_REQUEST (no client instance id, or after the last push),
    THROTTLING_QUOTA_EXCEEDED (before the end of the interval), UNKNOWN_SUBSCRIPTION_ID (ask again
    for the subscriptions), UNSUPPORTED_COMPRESSION_TYPE, TELEMETRY_TOO_LARGE, INVALID_RECORD.
    """

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
