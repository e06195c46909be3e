"""One source, two builds: batches and numbers, interpreted and compiled.

In C an integer wraps and an index is not checked. So both builds get equal bytes, valid and
malformed, and must return equal results, or raise equal errors with equal texts.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from array import array
from itertools import accumulate
from types import ModuleType
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from streamlog.errors import UsageError
from streamlog.metrics.build_info import HOT_MODULES
from streamlog.records.compression import Compression
from tests.builds.sources import (
    COMPILED,
    MISSING,
    REASON,
    ROOT,
    SOURCES,
    Act,
    both,
    outcome,
    same,
)

NOW_MS = 1_700_000_000_000
pytestmark = pytest.mark.skipif(bool(MISSING), reason=REASON)
VARINT = both("streamlog.records.varint")
ARROW_ROWS = both("streamlog.records.arrow_rows")
BATCH = both("streamlog.records.batch")
BYTE_SPANS = both("streamlog.records.byte_spans")
BUILDER = both("streamlog.records.builder")
COLUMNS = both("streamlog.records.record_columns")
PLAIN_VALUES = both("streamlog.tables.folds.plain_values")
WAITING = both("streamlog.tables.state.write_buffer")
MURMUR2 = both("streamlog.records.murmur2")

content = st.none() | st.binary(max_size=200)
timestamps = st.integers(-(2**65), 2**65) | st.integers(NOW_MS, NOW_MS + 10_000)
headers = st.lists(st.tuples(st.text(max_size=6), content), max_size=3)
rows = st.lists(st.tuples(timestamps, content, content, headers), min_size=1, max_size=8)
extremes = st.sampled_from([-(2**63), 2**63 - 1, -(2**62), 2**62, -(2**31), 2**31 - 1, -1, 0, 1])


def read_all(buffer: bytes) -> Act:
    names = [
        *("base_offset", "size_bytes", "leader_epoch", "crc", "attributes", "last_offset_delta"),
        *("base_timestamp_ms", "max_timestamp_ms", "producer_id", "producer_epoch"),
        *("base_sequence", "record_count", "last_offset", "next_offset", "is_control"),
        *("is_transactional", "is_log_append_time"),
    ]

    def act(module: ModuleType) -> list[object]:
        return [
            (
                [getattr(batch, name) for name in names],
                bytes(batch.data),
                batch.records(),
                list(batch.columns()),
            )
            for batch in module.split_batches(buffer)
        ]

    return act


def test_each_hot_module_exists_as_source_and_as_extension() -> None:
    for name in HOT_MODULES:
        assert str(SOURCES[name].__file__).endswith(f"{name.rsplit('.', 1)[1]}.py")
        assert COMPILED[name].__file__ != SOURCES[name].__file__


@given(st.binary(max_size=16))
@example(b"\xff" * 16)
@example(b"\x80" * 9 + b"\x01")
@example(b"\xff" * 4 + b"\x0f")
@example(b"\xff" * 4 + b"\x10")
def test_varints_are_read_equally_in_both_builds(data: bytes) -> None:
    padded = data + bytes(16)
    same(VARINT, lambda module: module.read_varint(padded, 0))
    same(VARINT, lambda module: module.read_varlong(padded, 0))


@given(st.integers(-(2**63), 2**63 - 1) | extremes)
def test_varints_are_written_equally_in_both_builds(value: int) -> None:
    def act(module: ModuleType) -> tuple[bytes, int]:
        out = bytearray()
        module.append_varint(out, value)
        return bytes(out), module.varint_size(value)

    same(VARINT, act)


@pytest.mark.parametrize("codec", Compression)
@given(records=rows)
def test_records_are_encoded_equally_in_both_builds(codec: Compression, records: list[Any]) -> None:
    same(BATCH, lambda module: module.encode_batch(records, codec=codec, producer_id=5))
    bulk = same(BATCH, lambda module: encoded_columns(module, records, codec))
    # The error may concern another record, so its text may differ.
    if isinstance(bulk, bytes):
        assert bulk == BATCH[0].encode_batch(records, codec=codec, producer_id=5)
    else:
        with pytest.raises(UsageError):
            BATCH[0].encode_batch(records, codec=codec, producer_id=5)


@given(
    st.tuples(st.integers(-1, 3), st.integers(-1, 5)),
    st.lists(st.integers(-2, 12), max_size=8) | st.lists(st.integers(0, 8), max_size=8).map(sorted),
    st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=2)),
    st.lists(timestamps, max_size=5),
    st.integers(0, 300),
)
def test_arrow_rows_are_accepted_and_refused_equally_in_both_builds(
    part: tuple[int, int],
    ends: list[int],
    contents: tuple[bytes, bytes | None],
    times: list[int],
    bytes_max: int,
) -> None:
    def act(module: ModuleType) -> object:
        arrow_rows = ARROW_ROWS[BATCH.index(module)]
        entries = arrow_rows.BinaryArray(*part, array("i", ends), *contents)
        rows = arrow_rows.ArrowRows(entries, entries, array("q", times))
        builder = module.BatchBuilder()
        partitions = rows.partitions_by_key(2, 1)
        starts = rows.arrange(partitions, 2)
        taken = outcome(lambda _: builder.take(rows, 0, part[1], bytes_max), module)
        return partitions, starts, taken, outcome(lambda _: builder.build(), module)

    same(BATCH, act)


@given(
    st.lists(st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b"\xff"]), max_size=30).map(b"".join),
    st.integers(-1, 40),
    st.integers(-1, 5),
)
def test_lines_are_cut_equally_in_both_builds(data: bytes, end: int, longest: int) -> None:
    def act(module: ModuleType) -> object:
        lines = module.cut_lines(data, end, longest)
        return None if lines is None else ([*lines], lines[1:3], lines.content_bytes)

    same(BYTE_SPANS, act)


@given(
    st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=4),
    st.integers(0, 4),
    st.binary(max_size=9),
)
def test_spans_are_accepted_and_refused_equally_in_both_builds(
    spans: list[tuple[int, int]], count: int, data: bytes
) -> None:
    def act(module: ModuleType) -> object:
        starts, ends = (
            (array("i", each) for each in zip(*spans, strict=True))
            if spans
            else (array("i"), array("i"))
        )
        entries = module.BinaryArray(0, count, ends, data, starts=starts)
        return [outcome(lambda _, row=row: entries.content(row), module) for row in range(-1, 5)]

    same(ARROW_ROWS, act)


def field_columns(module: ModuleType, records: list[Any]) -> Any:
    """Return columns of the build that the module belongs to."""
    return COLUMNS[BATCH.index(module)].FieldColumns.of(records)


def encoded_columns(module: ModuleType, records: list[Any], codec: Compression) -> Any:
    columns = field_columns(module, records)
    return module.encode_columns(columns, codec=codec, producer_id=5)


@given(
    st.lists(
        st.tuples(
            timestamps | st.sampled_from([None, 1.5, "5"]),
            content | st.sampled_from(["text", 5, bytearray(b"octets"), memoryview(b"view")]),
            content | st.sampled_from(["text", 5, [1, 2]]),
            headers | st.sampled_from([None, [("a",)], [(b"a", b"")], [("a", "b")], "ab"]),
        ),
        max_size=6,
    ),
    rows,
)
def test_a_builder_accepts_and_refuses_columns_equally_in_both_builds(
    dubious: list[Any], records: list[Any]
) -> None:
    def act(module: ModuleType) -> object:
        builder = module.BatchBuilder()

        def extend(added: list[Any]) -> object:
            done = outcome(lambda module: builder.extend(field_columns(module, added)), module)
            return done[0] if isinstance(done, tuple) else done

        done = [extend(added) for added in (records, dubious, records)]
        return done, builder.record_count, outcome(lambda _: builder.build(), module)

    same(BATCH, act)


@given(
    st.lists(
        st.tuples(
            timestamps | st.sampled_from([None, 1.5, "5"]),
            content | st.sampled_from(["text", 5, bytearray(b"octets"), memoryview(b"view")]),
            content | st.sampled_from(["text", 5, [1, 2]]),
            headers | st.sampled_from([None, 5, [("a",)], [(b"a", b"")], [("a", "b")], "ab"]),
        ),
        max_size=6,
    )
)
def test_a_builder_accepts_and_refuses_records_equally_in_both_builds(records: list[Any]) -> None:
    def act(module: ModuleType) -> object:
        builder = module.BatchBuilder()

        def append(_: ModuleType, row: Any) -> int:
            size_bytes: int = builder.append(*row)
            return size_bytes

        # Python and Cython word the error about a wrong type differently; its class is equal.
        sizes = [outcome(lambda module, row=row: append(module, row), module) for row in records]
        sizes = [size[0] if isinstance(size, tuple) else size for size in sizes]
        built = outcome(lambda _: builder.build(), module)
        return sizes, builder.record_count, built

    same(BATCH, act)


@pytest.mark.parametrize("codec", Compression)
@given(
    records=rows.filter(lambda records: all(abs(row[0]) < 2**62 for row in records)),
    position=st.integers(0),
    noise=st.binary(max_size=12),
    cut=st.integers(0, 3),
)
def test_broken_batches_are_read_equally_in_both_builds(
    codec: Compression, records: list[Any], position: int, noise: bytes, cut: int
) -> None:
    coded = bytearray(BATCH[0].encode_batch(records, codec=codec))
    position %= len(coded)
    coded[position : position + len(noise)] = noise
    same(BATCH, read_all(bytes(coded[: len(coded) - cut])))


@given(
    payload=st.binary(max_size=200),
    count=st.integers(-1, 12),
    last_delta=extremes | st.integers(0, 40),
    base_offset=extremes,
    base_timestamp_ms=extremes,
    attributes=st.integers(0, 63),
)
def test_noise_is_read_equally_in_both_builds(
    payload: bytes, count: int, last_delta: int, **fields: int
) -> None:
    header = (
        fields["base_offset"],
        49 + len(payload),
        -1,
        2,
        crc32c(payload),
        fields["attributes"],
        max(-(2**31), min(last_delta, 2**31 - 1)),
        fields["base_timestamp_ms"],
        fields["base_timestamp_ms"],
        -1,
        -1,
        -1,
        count,
    )
    coded = BUILDER[0]._HEADER.pack(*header) + payload
    same(BATCH, read_all(coded))
    same(BATCH, lambda module: module.RecordBatch(coded).check_crc())
    for behind in (payload, b"\x01", b"\xff"):  # As if other batches followed in the buffer.
        room = coded + 100 * (behind or b"\x00")
        same(BATCH, lambda module, room=room: list(module.RecordBatch(room).columns()))


deltas = st.integers(-(2**63), 2**63 - 1) | extremes


@given(
    base_timestamp_ms=extremes,
    numbers=st.tuples(deltas, deltas, deltas, deltas, deltas),
    body=st.binary(max_size=20),
)
def test_extreme_numbers_are_read_equally_in_both_builds(
    base_timestamp_ms: int, numbers: tuple[int, ...], body: bytes
) -> None:
    record = bytearray(1)
    for number in numbers:
        VARINT[0].append_varint(record, number)
    record += body
    payload = bytearray()
    VARINT[0].append_varint(payload, len(record))
    payload += record
    header = (0, 49 + len(payload), -1, 2, 0, 0, 2**31 - 1, base_timestamp_ms, 0, -1, -1, -1, 1)
    same(BATCH, read_all(BUILDER[0]._HEADER.pack(*header) + bytes(payload)))


@given(buffer=st.binary(max_size=130), position=st.integers(-(2**70), 2**70) | st.integers(-5, 130))
def test_a_position_in_a_buffer_is_checked_equally_in_both_builds(
    buffer: bytes, position: int
) -> None:
    same(BATCH, lambda module: module.RecordBatch(buffer, position).size_bytes)


INTERPRETED_RUN = """
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_loader

class SourceOnly:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in sys.argv[1].split():
            return spec_from_loader(name, SourceFileLoader(name, name.replace(".", "/") + ".py"))

sys.meta_path.insert(0, SourceOnly)
import pytest
from streamlog.records import batch
assert batch.__file__.endswith(".py"), batch.__file__
sys.exit(pytest.main(["-q", "-p", "no:xdist", *sys.argv[2:]]))
"""


def test_the_tests_of_hot_modules_pass_interpreted() -> None:
    command = [sys.executable, "-c", INTERPRETED_RUN, " ".join(HOT_MODULES)]
    files = [
        "tests/records/test_varint.py",
        "tests/records/test_batch.py",
        "tests/protocol/test_produce_runs.py",
        "tests/broker/apis/test_produce_runs.py",
        "tests/client/producer/test_deliveries.py",
        "tests/client/producer/test_partitioner.py",
    ]
    run = subprocess.run(
        [*command, *files], cwd=ROOT, capture_output=True, text=True, check=False, timeout=1_000
    )
    assert run.returncode == 0, run.stdout + run.stderr


@given(st.lists(st.binary(max_size=40), max_size=5), st.integers(-1, 2**31), st.integers(0, 41))
@example([b"\xff" * 4, b"\xff" * 5, b"\xff" * 7], 3, 0)
def test_keys_have_equal_partitions_in_both_builds(
    keys: list[bytes], partitions: int, tail: int
) -> None:
    same(MURMUR2, lambda module: [module.murmur2(key) for key in keys])
    same(MURMUR2, lambda module: module.partitions_of_keys(iter(keys), partitions, tail))
    same(MURMUR2, lambda module: [module.partition_of_key(key, partitions) for key in keys])


@given(st.lists(st.none() | st.integers(), max_size=3))
def test_missing_values_are_found_equally_in_both_builds(column: list[int | None]) -> None:
    assert same(COLUMNS, lambda module: module.has_none(column)) == (None in column)


@given(st.lists(st.tuples(extremes, extremes), max_size=4))
def test_batches_are_summed_equally_in_both_builds(headers: list[tuple[int, int]]) -> None:
    coded = [
        BUILDER[0]._HEADER.pack(
            *(0, 49, -1, 2, 0, 0, max(-(2**31), min(delta, 2**31 - 1))),
            *(0, newest_ms, -1, -1, -1, 1),
        )
        for delta, newest_ms in headers
    ]

    def act(module: ModuleType) -> tuple[int, int]:
        batches = [module.RecordBatch(each) for each in coded]
        return module.count_offsets(batches), module.newest_timestamp_ms(batches)

    same(BATCH, act)


@given(rows, st.booleans())
def test_sizes_are_counted_equally_in_both_builds(records: list[Any], shared: bool) -> None:
    if shared:  # All records share one headers object.
        records = [(*record[:3], records[0][3]) for record in records]
    sizes = [
        21
        + len(key or b"")
        + len(value or b"")
        + sum(10 + len(name) + len(content or b"") for name, content in own)
        for _, key, value, own in records
    ]
    counted = same(COLUMNS, lambda module: module.FieldColumns.of(records).size_bytes())
    assert counted == sum(sizes)
    for start in range(len(records)):
        for room_bytes in {0, sizes[start], sizes[start] - 1, *accumulate(sizes[start:])}:
            fitting = same(
                COLUMNS,
                lambda module, start=start, room_bytes=room_bytes: module.FieldColumns.of(
                    records
                ).fitting(start, room_bytes),
            )
            taken = [size for size in accumulate(sizes[start:]) if size <= room_bytes]
            assert fitting == (start + len(taken), taken[-1] if taken else 0)


@given(st.lists(timestamps, max_size=8), timestamps)
def test_the_running_maximum_is_equal_in_both_builds(numbers: list[int], initial: int) -> None:
    found = same(COLUMNS, lambda module: module.running_max(numbers, initial))
    assert found == list(accumulate(numbers, max, initial=initial))[1:]


longs = timestamps.filter(lambda ms: abs(ms) < 2**63)


@given(st.lists(longs, max_size=8), longs, longs)
def test_the_first_number_outside_a_range_is_equal_in_both_builds(
    numbers: list[int], lowest: int, highest: int
) -> None:
    found = same(COLUMNS, lambda module: module.first_outside(numbers, lowest, highest))
    outside = (at for at, number in enumerate(numbers) if not lowest <= number <= highest)
    assert found == next(outside, -1)


@given(rows, st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_columns_are_partitioned_equally_in_both_builds(
    records: list[Any], places: list[int]
) -> None:
    records = [(*row[:3], tuple(row[3])) for row in records]

    def act(module: ModuleType) -> object:
        parts = module.FieldColumns.of(records).parted(places, 3)
        return [None if part is None else list(part) for part in parts]

    found = same(COLUMNS, act)
    placed = list(zip(records, places, strict=False))
    for place, part in enumerate(found if isinstance(found, list) else []):
        assert (part or []) == [row for row, at in placed if at == place]


@given(st.lists(st.none() | st.integers() | st.booleans() | st.text(), max_size=5))
def test_columns_are_converted_and_type_checked_equally_in_both_builds(column: list[Any]) -> None:
    found = same(COLUMNS, lambda module: module.called(str, column))
    assert found == [None if entry is None else str(entry) for entry in column]
    same(COLUMNS, lambda module: module.called(int, column))  # It may raise or not, in both builds.
    kinds = frozenset({int, str})
    found = same(COLUMNS, lambda module: module.all_of_type(column, kinds))
    assert found == kinds.issuperset(map(type, column))


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_plain_values_are_copied_equally_in_both_builds(value: object) -> None:
    def act(module: ModuleType) -> str | None:
        found = module.copied(value)
        return None if found is module.OTHER else repr(found)

    same(PLAIN_VALUES, act)


waiting_keys = st.lists(
    st.sampled_from([b"a", b"b", b"c", b"d"]) | st.binary(max_size=1), max_size=8
)


@given(st.lists(waiting_keys, max_size=4), st.integers(-1, 3), st.integers(0, 9))
def test_changes_are_buffered_equally_in_both_builds(
    commits: list[list[bytes]], start: int, stop: int
) -> None:
    def act(module: ModuleType) -> object:
        waiting = module.Waiting()
        found: list[object] = []
        for number, keys in enumerate(commits):
            values = [b"%d" % number if at % 3 else None for at in range(len(keys))]
            waiting.put_all(keys, values, start, min(stop, len(keys)) if stop < 9 else stop)
            found.append((len(waiting), waiting.columns(), waiting.get(b"a", 5), waiting.removed()))
            waiting.drop_removed([(b"b", b"d"), (b"", b"\x10")])
        return found, waiting.in_order(), waiting.keys_from(1)

    same(WAITING, act)


def test_records_are_hidden_from_the_collector_and_freed_all_the_same() -> None:
    count = 1_000
    written = BATCH[1].encode_batch([(NOW_MS, b"key", b"value", ())] * count)

    def read() -> list[Any]:
        records: list[Any] = BATCH[1].RecordBatch(written).records()
        return records

    assert not any(map(gc.is_tracked, read()))
    before = sys.getallocatedblocks()
    for _ in range(20):
        read()
    # A record is five objects at least: one that stayed would show in each round.
    assert sys.getallocatedblocks() - before < count
