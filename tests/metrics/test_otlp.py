"""OTLP metrics, decoded: what is read, and what malformed and hostile messages cost."""

from __future__ import annotations

import math
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from streamlog.errors import CorruptData, DecompressedTooLarge
from streamlog.metrics import otlp
from streamlog.metrics.otlp import (
    ATTRIBUTES_MAX,
    FIELDS_MAX,
    POINT_FIELDS_MAX,
    POINTS_MAX,
    STEP_FIELDS,
    TEXT_CHARS_MAX,
    Point,
    decode_metrics,
    decode_steps,
)
from tests.metrics.otlp_messages import (
    CUMULATIVE,
    attribute,
    fixed,
    gauge,
    message,
    metrics,
    number,
    point,
    total,
    varint,
)

SAMPLE = metrics(
    gauge("a.avg", point(1.5, node="1"), point(-2, node="2")),
    total("a.total", point(7)),
    total("b.total", point(8.0), temporality=CUMULATIVE),
    total("c", point(-3), monotonic=False),
    group_id="g",
)


def test_gauges_and_sums_are_read_with_attributes_and_kind() -> None:
    found = decode_metrics(SAMPLE)
    assert found.points == [
        Point("a.avg", (("node", "1"),), 1.5),
        Point("a.avg", (("node", "2"),), -2),
        Point("a.total", (), 7, is_sum=True, is_monotonic=True, is_delta=True),
        Point("b.total", (), 8.0, is_sum=True, is_monotonic=True, is_delta=False),
        Point("c", (), -3, is_sum=True, is_monotonic=False, is_delta=True),
    ]
    assert found.resource == (("group_id", "g"),)


def test_a_histogram_is_read_as_count_and_sum() -> None:
    data = message(1, fixed(4, 3), fixed(5, 1.5), attribute(9, "node", "1"))
    histogram = message(2, message(1, "h"), message(9, data, number(2, 1)))
    found = decode_metrics(metrics(histogram)).points
    assert [(each.name, each.value, each.is_delta) for each in found] == [
        ("h.count", 3, True),
        ("h.sum", 1.5, True),
    ]


def test_attributes_of_other_types_are_texts() -> None:
    values = {
        "yes": number(2, 1),
        "int": number(3, 5),
        "negative": number(3, (1 << 64) - 5),
        "double": fixed(4, 0.5),
        "list": message(5, b""),
    }
    about = b"".join(attribute(7, key, value) for key, value in values.items())
    (found,) = decode_metrics(metrics(gauge("g", message(1, fixed(6, 1), about)))).points
    assert dict(found.attributes) == {
        "yes": "true",
        "int": "5",
        "negative": "-5",
        "double": "0.5",
        "list": "",
    }


def test_what_is_not_known_is_skipped() -> None:
    summary = message(2, message(1, "s"), message(11, message(1, b"")))
    unknown = number(90, 5) + fixed(91, 2) + message(92, b"xyz") + varint(93 << 3 | 5) + bytes(4)
    no_value = gauge("none", message(1, fixed(3, 1)))
    found = decode_metrics(metrics(summary, no_value) + unknown)
    assert found.points == []
    assert found.skipped == 1
    assert decode_metrics(b"").points == []


def test_a_message_that_is_cut_off_anywhere_is_refused_or_shorter() -> None:
    whole = decode_metrics(SAMPLE).points
    for size in range(1, len(SAMPLE)):
        with pytest.raises(CorruptData):
            decode_metrics(SAMPLE[:size])
    assert len(whole) == 5


@pytest.mark.parametrize("seed", range(4))
def test_damaged_and_random_bytes_raise_corrupt_data_only(seed: int) -> None:
    rng = Random(seed)
    for _ in range(2_000):
        damaged = bytearray(SAMPLE)
        for _ in range(rng.randint(1, 8)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for data in (bytes(damaged), rng.randbytes(rng.randrange(200))):
            try:
                found = decode_metrics(data)
            except CorruptData:
                continue
            assert all(len(each.name) <= TEXT_CHARS_MAX for each in found.points)


@pytest.mark.parametrize(
    "data",
    [
        message(1, b"\x0b"),  # a group, which proto3 does not have
        varint(1 << 3 | 2) + varint(1 << 63),
        varint(1 << 3 | 2) + b"\xff" * 11,
        metrics(message(2, message(5, point(1)))),  # no name
        metrics(gauge("g", message(1, varint(4 << 3 | 1) + b"abc"))),
        metrics(message(2, message(1, b"\xff\xfe"), message(5, point(1)))),
    ],
)
def test_malformed_messages_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptData):
        decode_metrics(data)


def test_texts_attributes_points_and_fields_are_bounded() -> None:
    many = {f"k{number}": "v" for number in range(100)}
    long = "é" * 10_000
    (found,) = decode_metrics(metrics(gauge(long, point(1, **many)), x=long)).points
    assert found.name == "é" * TEXT_CHARS_MAX
    assert len(found.attributes) == ATTRIBUTES_MAX
    with pytest.raises(DecompressedTooLarge, match="data points"):
        decode_metrics(metrics(gauge("g", *[point(1)] * (POINTS_MAX + 1))))
    with pytest.raises(DecompressedTooLarge, match="fields"):
        decode_metrics(number(9, 1) * (FIELDS_MAX + 1))
    with pytest.raises(DecompressedTooLarge, match="point or resource"):
        decode_metrics(metrics(gauge("g", point(1, **{f"k{each}": "" for each in range(1_000)}))))


WORST = {
    "fields": number(9, 1) * (1 << 19),
    "messages": message(1, b"") * (1 << 19),
    "points": metrics(*[gauge("g", point(math.nan))] * 20_000),
    "metrics": metrics(*[message(2, message(1, "g"))] * 100_000),
    "attributes": metrics(gauge("g", point(1, **{f"k{n}": "v" * 50 for n in range(20_000)}))),
}
DEEP = {
    "named": metrics(*[gauge("g", point(1, k="v"))] * 4_000),
    "one": metrics(gauge("g", *[point(1, k="v")] * 5_000)),
    "in data": metrics(message(2, message(1, "g"), message(5, number(9, 1) * 90_000))),
    "in a point": metrics(gauge("g", message(1, number(9, 1) * 90_000))),
    "in a value": metrics(gauge("g", message(1, message(7, message(2, number(9, 1) * 90_000))))),
    "resource": metrics(**{f"k{n}": "v" for n in range(20_000)}),
}


@pytest.mark.parametrize("data", (WORST | DEEP).values(), ids=WORST | DEEP)
def test_a_step_reads_a_bounded_number_of_fields(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    fields = otlp._Decoder._fields

    def counting(decoder: otlp._Decoder, span: otlp.Span) -> Iterator[object]:
        nonlocal read
        for each in fields(decoder, span):
            read += 1
            yield each

    monkeypatch.setattr(otlp._Decoder, "_fields", counting)
    most = before = 0
    with suppress(CorruptData):
        for _ in decode_steps(data):
            most, before = max(most, read - before), read
    most = max(most, read - before)
    assert most <= STEP_FIELDS + POINT_FIELDS_MAX
    # It is one of the bounds that ends it, or it is read whole.
    assert read <= FIELDS_MAX


@pytest.mark.parametrize("data", WORST.values(), ids=WORST)
def test_the_worst_message_of_a_mebibyte_costs_little(data: bytes) -> None:
    data = data[: 1 << 20]
    tracemalloc.start()
    begun_s = time.process_time()
    with suppress(CorruptData):
        decode_metrics(data)
    spent_s = time.process_time() - begun_s
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Without tracing it is a tenth; the bound says that it does not grow with what is claimed.
    assert spent_s < 5
    assert peak_bytes < 16 << 20
