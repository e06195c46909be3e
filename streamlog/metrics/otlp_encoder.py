"""OTLP encoder: writes metrics in OpenTelemetry's protobuf form (`MetricsData` v1).

The numbers of the fields, and the decoder, are in `otlp`. Values are doubles, as Kafka's clients
write them. One resource and one scope hold all metrics.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from streamlog.metrics.otlp import (
    AnyValueField,
    Attributes,
    DataField,
    KeyValueField,
    MetricField,
    MetricsDataField,
    NumberField,
    Point,
    ResourceField,
    ResourceMetricsField,
    ScopeMetricsField,
    Temporality,
    Wire,
)

_DOUBLE = struct.Struct("<d")
_FIXED64 = struct.Struct("<Q")
_MORE = 0x80


class ReportTimes(NamedTuple):
    """When the values of a report were read, and since when sums count, in ns since 1970."""

    start_ns: int
    time_ns: int


def encode_metrics(points: Iterable[Point], resource: Attributes, times: ReportTimes) -> bytes:
    """Return a `MetricsData` message with one metric for each point.

    Args:
        points: the numbers; a sum is a delta or cumulative by its own `is_delta`.
        resource: names and texts that describe who reports.
        times: the times of all points.
    """
    described = b"".join(_attribute(ResourceField.ATTRIBUTES, each) for each in resource)
    metrics = b"".join(_bytes(ScopeMetricsField.METRICS, _metric(each, times)) for each in points)
    group = _bytes(ResourceMetricsField.RESOURCE, described)
    group += _bytes(ResourceMetricsField.SCOPE_METRICS, metrics)
    return _bytes(MetricsDataField.RESOURCE_METRICS, group)


def _metric(point: Point, times: ReportTimes) -> bytes:
    number = b"".join(_attribute(NumberField.ATTRIBUTES, each) for each in point.attributes)
    if point.is_sum:
        number += _fixed64(NumberField.START_NS, times.start_ns)
    number += _fixed64(NumberField.TIME_NS, times.time_ns)
    number += _tag(NumberField.AS_DOUBLE, Wire.FIXED64) + _DOUBLE.pack(point.value)
    data = _bytes(DataField.POINTS, number)
    if point.is_sum:
        counts = Temporality.DELTA if point.is_delta else Temporality.CUMULATIVE
        data += _tag(DataField.TEMPORALITY, Wire.VARINT) + _varint(counts)
        data += _tag(DataField.IS_MONOTONIC, Wire.VARINT) + _varint(point.is_monotonic)
    name = _bytes(MetricField.NAME, point.name.encode())
    return name + _bytes(MetricField.SUM if point.is_sum else MetricField.GAUGE, data)


def _attribute(field: IntEnum, attribute: tuple[str, str]) -> bytes:
    key, text = attribute
    value = _bytes(AnyValueField.STRING, text.encode())
    pair = _bytes(KeyValueField.KEY, key.encode()) + _bytes(KeyValueField.VALUE, value)
    return _bytes(field, pair)


def _bytes(field: IntEnum, content: bytes) -> bytes:
    return _tag(field, Wire.BYTES) + _varint(len(content)) + content


def _fixed64(field: IntEnum, number: int) -> bytes:
    return _tag(field, Wire.FIXED64) + _FIXED64.pack(number)


def _tag(field: IntEnum, wire: Wire) -> bytes:
    return _varint(field << 3 | wire)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= _MORE:
        found.append(number & 0x7F | _MORE)
        number >>= 7
    found.append(number)
    return bytes(found)
