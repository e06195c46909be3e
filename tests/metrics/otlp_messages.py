"""Writes OTLP metrics for tests, from the field numbers of OpenTelemetry's `metrics.proto`."""

from __future__ import annotations

import struct

DELTA, CUMULATIVE = 1, 2


def varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def message(number: int, *parts: bytes | str) -> bytes:
    data = b"".join(each.encode() if isinstance(each, str) else each for each in parts)
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def fixed(field: int, value: float) -> bytes:
    form = "<q" if isinstance(value, int) else "<d"
    return varint(field << 3 | 1) + struct.pack(form, value)


def attribute(field: int, key: str, value: bytes | str) -> bytes:
    """A `KeyValue`; a text, or an encoded `AnyValue`."""
    any_value = message(1, value) if isinstance(value, str) else value
    return message(field, message(1, key), message(2, any_value))


def point(value: float, **attributes: str) -> bytes:
    """A `NumberDataPoint` with an integer or a double."""
    time = fixed(2, 1_000_000_000) + fixed(3, 2_000_000_000)
    text = b"".join(attribute(7, key, each) for key, each in attributes.items())
    return message(1, time, fixed(6 if isinstance(value, int) else 4, value), text)


def gauge(name: str, *points: bytes) -> bytes:
    return message(2, message(1, name), message(2, "text"), message(5, *points))


def total(name: str, *points: bytes, temporality: int = DELTA, monotonic: bool = True) -> bytes:
    """A `Sum`."""
    kind = number(2, temporality) + number(3, int(monotonic))
    return message(2, message(1, name), message(3, "1"), message(7, *points, kind))


def metrics(*found: bytes, **resource: str) -> bytes:
    """A `MetricsData` of one resource."""
    about = b"".join(attribute(1, key, value) for key, value in resource.items())
    scope = message(1, message(1, "tests"))
    return message(1, message(1, about), message(2, scope, *found))
