from __future__ import annotations

import enum
import math
from datetime import date
from decimal import Decimal
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from streamlog.connect import BadRecord, BadRecords, Batch, TopicPartition
from streamlog.connectors.redis.redis_commands import (
    FIELDS_MAX,
    KeyTemplate,
    RedisForm,
    RedisShape,
    pack_commands,
    plan_commands,
    redis_text,
)
from streamlog.durations import EPOCH
from streamlog.errors import ConfigError
from streamlog.record import Record

PLACE = TopicPartition("orders", 3)


class Colour(enum.Enum):
    RED = "red"


class Point(BaseModel):
    x: int


def shape(form: RedisForm = "hash", key: str = "{topic}:{key}", **rest: int) -> RedisShape:
    return RedisShape(form, KeyTemplate(key), **rest)


def planned(shape: RedisShape, key: object, value: object, raw: bytes | None = b"raw") -> object:
    record = Record(key, value, EPOCH, topic="orders", partition=3, offset=0)
    batch = Batch(PLACE, [record], next_offset=1, raw=[(b"", raw)])
    return plan_commands(batch, shape, b"streamlog:offsets:")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\xff\x00", b"\xff\x00"),
        ("ä", "ä".encode()),
        (True, b"true"),
        (-(2**70), str(-(2**70)).encode()),
        (math.nan, b"nan"),
        (0.1, b"0.1"),
        (Decimal("1.20"), b"1.20"),
        (date(2026, 1, 2), b"2026-01-02"),
        (UUID(int=1), str(UUID(int=1)).encode()),
        (Colour.RED, b"red"),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        ([Point(x=1)], b'[{"x":1}]'),
        ('"quoted"', b'"quoted"'),
    ],
)
def test_values_become_texts(value: object, text: bytes) -> None:
    assert redis_text(value) == text


def test_a_hash_is_the_row_and_nothing_of_the_row_before() -> None:
    row = {"item": "a", "price": 2, "note": None}
    found = planned(shape(ttl_ms=50), 7, row)
    fields = [b"item", b"a", b"price", b"2"]
    expected = [
        ["DEL", b"orders:7"], ["HSET", b"orders:7", *fields], ["PEXPIRE", b"orders:7", "50"],
    ]  # fmt: skip
    assert found == (expected, 0)
    assert planned(shape(), 7, {"note": None}) == ([["DEL", b"orders:7"]], 0)
    assert planned(shape(), "k", None, None) == ([["DEL", b"orders:k"]], 0)
    assert planned(shape(), "k", 5) == (
        [["DEL", b"orders:k"], ["HSET", b"orders:k", "value", b"raw"]], 0
    )  # fmt: skip


def test_the_other_forms() -> None:
    assert planned(shape("string", ttl_ms=9), b"k", "v") == (
        [["SET", b"orders:k", b"raw", "PX", "9"]], 0
    )  # fmt: skip
    entry = ["XADD", b"orders-3", "MAXLEN", "~", "8", "*", "_key", b"k", b"x", b"1"]
    stream = shape("stream", "{topic}-{partition}", maxlen=8)
    assert planned(stream, "k", {"x": 1}) == ([entry], 0)
    assert planned(stream, "k", None, None) == ([], 1)
    assert planned(shape("publish", "{key}"), "c", "v") == ([["PUBLISH", b"c", b"raw"]], 0)


@pytest.mark.parametrize(
    ("form", "key", "value", "why"),
    [
        ("hash", None, {"a": 1}, "it has no key"),
        ("stream", None, {"a": None}, "neither a key nor a field"),
        ("hash", "k", dict.fromkeys(range(FIELDS_MAX + 1), 1), "1001 fields"),
        ("string", "streamlog:offsets:x", "v", "where the offsets are"),
        ("string", "\ud800", "v", "surrogates not allowed"),
    ],
)
def test_bad_records_are_named(form: RedisForm, key: object, value: object, why: str) -> None:
    template = "{topic}" if form == "stream" else "{key}"
    with pytest.raises(BadRecords, match=why):
        planned(shape(form, template), key, value)


def test_templates() -> None:
    record = Record("k", 1, EPOCH, topic="t", partition=2)
    assert KeyTemplate("a{topic}{partition}:{key}!").name(record) == b"at2:k!"
    for text in ("", "{nothing}", "{topic", "}x", "{}", "{{topic}}"):
        with pytest.raises(ConfigError):
            KeyTemplate(text)
    with pytest.raises(BadRecord):
        KeyTemplate("{key}").name(Record(None, 1, EPOCH))


def test_packed_commands_are_messagepack() -> None:
    commands: list[list[bytes | str]] = [["SET", b"ascii", "ä"], [], [b"x" * 70_000]]
    assert msgspec.msgpack.decode(pack_commands(commands)) == [
        ["SET", "ascii", "ä"], [], ["x" * 70_000]
    ]  # fmt: skip
    assert pack_commands([[b"\xff"]])[-1:] == b"\xff"
