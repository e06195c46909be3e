"""A reader of Kafka's record batch v2, written from the specification without our code.

It reads byte by byte and trusts no field. It refuses every batch that is not sound; every client
can read the batches that it accepts.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

NULL = -1
INT64 = range(-(2**63), 2**63)


class Malformed(ValueError):
    """The bytes are not a sound batch."""


class SlowRecord(NamedTuple):
    """A record as the specification defines it."""

    offset_delta: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Bytes:
    """Bytes that are consumed from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.at:
            raise Malformed(f"{size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def zigzag(self, bytes_max: int) -> int:
        raw = 0
        for number in range(bytes_max):
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << (7 * number)
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
        raise Malformed(f"a number of more than {bytes_max} bytes")

    def varint(self) -> int:
        value = self.zigzag(5)
        if not -(2**31) <= value < 2**31:
            raise Malformed(f"{value} has more than 32 bits")
        return value

    def varlong(self) -> int:
        value = self.zigzag(10)
        if value not in INT64:
            raise Malformed(f"{value} has more than 64 bits")
        return value

    def text_or_null(self) -> bytes | None:
        size = self.varint()
        return None if size == NULL else self.take(size)

    def expect_end(self) -> None:
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes too many")


def read_records(payload: bytes, count: int, base_timestamp_ms: int) -> list[SlowRecord]:
    """Return the `count` records in the decompressed `payload` of a batch."""
    rest = Bytes(payload)
    records = [_record(rest, number, base_timestamp_ms) for number in range(count)]
    rest.expect_end()
    return records


def read_plain_batch(data: bytes) -> list[SlowRecord]:
    """Return the records of an uncompressed batch from a client."""
    header = struct.unpack_from(">qiibIhiqqqhii", data)
    delta, base_ms, count = header[6], header[7], header[12]
    if count <= 0 or count != delta + 1:
        raise Malformed(f"{count} records, last offset delta {delta}")
    return read_records(data[61:], count, base_ms)


def _record(rest: Bytes, number: int, base_timestamp_ms: int) -> SlowRecord:
    body = Bytes(rest.take(rest.varint()))
    body.take(1)  # attributes, unused
    timestamp_ms = base_timestamp_ms + body.varlong()
    if timestamp_ms not in INT64:
        raise Malformed(f"timestamp {timestamp_ms}")
    offset_delta = body.varint()
    if offset_delta != number:
        raise Malformed(f"offset delta {offset_delta} of record {number}")
    key, value = body.text_or_null(), body.text_or_null()
    count = body.varint()
    if count < 0:
        raise Malformed(f"{count} headers")
    headers = []
    for _ in range(count):
        name = body.take(body.varint())
        try:
            headers.append((name.decode(), body.text_or_null()))
        except UnicodeDecodeError as error:
            raise Malformed(f"header {name!r}") from error
    body.expect_end()
    return SlowRecord(offset_delta, timestamp_ms, key, value, tuple(headers))
