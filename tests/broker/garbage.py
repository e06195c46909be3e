"""Frames of a broken or hostile client: mutated real frames, and noise."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

from streamlog.protocol.api_table import APIS, Api
from streamlog.protocol.frame import encode_request, encode_response
from streamlog.protocol.messages.topics_and_configs import CreateTopicsRequest
from streamlog.protocol.schema import Field, Message, StructType, one_buffer
from streamlog.records.builder import encode_columns
from streamlog.records.compression import Compression
from streamlog.records.record_columns import FieldColumns
from tests.broker.node import batch

PARTITIONS_MAX = 50
"""A well-formed request for more partitions is granted, so it is not garbage."""
TEXTS = ("t", "t", "u", "g", "m", "", "range", "consumer", "x" * 300, "\u00e9\u4e2d")
FRACTIONS = (0.0, -1.0, 1.5, 1e9, 1e300, float("inf"), float("nan"))
NUMBERS = (0, 0, 1, 1, 2, 3, -1, 100)
EXTREMES = (-1, 0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
MUTATIONS = (0, 1, 1, 1, 2, 4)
NOISE_BYTES_MAX = 400
WIDTHS = {1: ">B", 2: ">H", 4: ">I"}


class Garbage:
    """An endless supply of frames, reproducible by its seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.corpus = [
            (api, version)
            for api in APIS.values()
            for version in range(api.min_version, api.max_version + 1)
            if api.is_served(version)
        ]
        self._ways: list[Callable[[bytearray], None]] = [
            self._flip,
            self._flip,
            self._number,
            self._number,
            self._cut,
            self._insert,
            self._repeat,
        ]

    def frames(self) -> Iterator[bytes]:
        """Yield frames without their size."""
        while True:
            for api, version in self._shuffled():
                yield self._mutated(api, version)
                if self._random.random() < 0.05:
                    yield self._random.randbytes(self._random.randint(0, NOISE_BYTES_MAX))

    def noise(self) -> bytes:
        """Return bytes that are not even frames."""
        return self._random.randbytes(self._random.randint(1, NOISE_BYTES_MAX))

    def chance(self, of: float) -> bool:
        return self._random.random() < of

    def count(self, most: int) -> int:
        return self._random.randint(1, most)

    def _shuffled(self) -> list[tuple[Api, int]]:
        return self._random.sample(self.corpus, len(self.corpus))

    def _mutated(self, api: Api, version: int) -> bytes:
        return self.spoilt(self.request(api, version))

    def spoilt(self, sound: bytes) -> bytes:
        """Return the frame, in most cases mutated."""
        frame = bytearray(sound)
        for _ in range(self._random.choice(MUTATIONS)):
            if frame:
                self._random.choice(self._ways)(frame)
        return bytes(frame)

    # ---- real frames ----

    def request(self, api: Api, version: int) -> bytes:
        """Return a random request as a frame without its size."""
        message = self._message(api.request, version)
        number = self._random.randrange(2**31)
        return b"".join(encode_request(api, version, number, "c", message))[4:]

    def response(self, api: Api, version: int) -> bytes:
        """Return a random response as a frame without its size."""
        message = self._message(api.response, version)
        pieces = encode_response(api, version, self._random.randrange(2**31), message)
        return b"".join(map(one_buffer, pieces))[4:]

    def records(self) -> bytes:
        """Return a random batch of any codec, with keys, values and headers."""
        draw = self._random
        columns = FieldColumns()
        for _ in range(draw.randint(1, 20)):
            headers = [("h", None), (draw.choice(TEXTS), draw.randbytes(3))][: draw.randint(0, 2)]
            key, value = (draw.choice((None, b"", draw.randbytes(40))) for _ in range(2))
            columns.append(draw.randrange(10_000), key, value, headers)
        return encode_columns(columns, codec=draw.choice((*Compression,)))

    def _message(self, declared: Any, version: int) -> Any:
        present = [field for field in declared.__fields__ if version in field.versions]
        return declared(**{field.name: self._value(field, version) for field in present})

    def _value(self, field: Field, version: int) -> Any:
        draw = self._random
        if version in field.nullable and draw.random() < 0.2:
            return None
        if field.name.endswith("_ms"):
            return draw.choice((0, 1, 5, 10_000 if "timeout" in field.name else 5))
        match field.kind, field.item:
            case "array", StructType() as item:
                return [self._message(item, version) for _ in range(draw.choice((0, 1, 1, 2)))]
            case "array", str(kind):
                return [self._scalar(kind) for _ in range(draw.choice((0, 1, 1, 2)))]
            case "struct", StructType() as item:
                return self._message(item, version)
            case kind, _:
                return self._scalar(kind)

    def _scalar(self, kind: str) -> Any:
        draw = self._random
        match kind:
            case "bool":
                return draw.random() < 0.5
            case "string" | "float64":
                return draw.choice(TEXTS if kind == "string" else FRACTIONS)
            case "bytes" | "uuid":
                return draw.randbytes(16 if kind == "uuid" else draw.randint(0, 20))
            case "records":
                return batch(*[b"value"] * draw.randint(1, 3))
            case "uint16":
                return draw.choice(NUMBERS) & 0xFFFF
            case _:
                return draw.choice(NUMBERS)

    # ---- mutations ----

    def _flip(self, frame: bytearray) -> None:
        frame[self._random.randrange(len(frame))] ^= 1 << self._random.randrange(8)

    def _number(self, frame: bytearray) -> None:
        width = self._random.choice([width for width in WIDTHS if width <= len(frame)])
        at = self._random.randrange(len(frame) - width + 1)
        limit = (1 << 8 * width) - 1
        struct.pack_into(WIDTHS[width], frame, at, self._random.choice(EXTREMES) & limit)

    def _cut(self, frame: bytearray) -> None:
        del frame[self._random.randrange(len(frame)) :]

    def _insert(self, frame: bytearray) -> None:
        at = self._random.randrange(len(frame) + 1)
        frame[at:at] = self._random.randbytes(self._random.randint(1, 16))

    def _repeat(self, frame: bytearray) -> None:
        begin = self._random.randrange(len(frame))
        end = min(begin + self._random.randint(1, 64), len(frame))
        at = self._random.randrange(len(frame) + 1)
        frame[at:at] = frame[begin:end]


def is_honest(message: Message) -> bool:
    """Return whether a message is a valid request for many partitions."""
    return isinstance(message, CreateTopicsRequest) and any(
        topic.num_partitions > PARTITIONS_MAX for topic in message.topics
    )
