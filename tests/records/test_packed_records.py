from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import UsageError
from streamlog.records.batch import RecordBatch, encode_columns
from streamlog.records.compression import Compression
from streamlog.records.packed_records import PackedRecords
from streamlog.records.record_columns import FieldColumns

contents = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), contents), max_size=2).map(tuple)
rows = st.lists(st.tuples(st.integers(0, 2**41), contents, contents, headers), min_size=1)


@given(rows, st.data())
def test_records_packed_in_pieces_equal_one_encoded_batch(
    records: list[tuple[object, ...]], data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(records)))
    pack = PackedRecords()
    for some in (records[:cut], records[cut:]):
        if some:
            pack.extend(FieldColumns.of(some))
    apart, all_of_them = PackedRecords(), FieldColumns.of(records)
    for first, last in ((0, cut), (cut, len(records))):
        apart.extend_with(all_of_them, first, last)
        assert apart.last_timestamp_ms == (records[last - 1][0] if last else -1)
    with pytest.raises(IndexError):
        apart.extend_with(all_of_them, cut, len(records) + 1)
    assert apart.sealed() == pack.sealed()
    assert len(pack) == len(records)
    for codec in (Compression.GZIP, Compression.NONE):
        producer = {
            "producer_id": 7,
            "producer_epoch": 2,
            "base_sequence": 40,
            "transactional": True,
        }
        expected = encode_columns(FieldColumns.of(records), codec=codec, **producer)  # type: ignore[arg-type]
        assert pack.sealed(codec=codec, **producer) == expected  # type: ignore[arg-type]
    assert pack.size_bytes() == len(expected)
    start, stop = sorted(data.draw(st.integers(0, len(records))) for _ in range(2))
    assert list(pack.part(start, stop)) == [tuple(each) for each in records[start:stop]]


def test_each_seal_may_have_another_producer() -> None:
    pack = PackedRecords()
    with pytest.raises(UsageError):
        pack.sealed()
    pack.extend(FieldColumns.of([(5, b"k", b"v", ())]))
    one, other = (pack.sealed(producer_id=number, base_sequence=number) for number in (3, 4))
    assert RecordBatch(one).producer_id == 3
    batch = RecordBatch(other)
    batch.check_crc()
    assert (batch.producer_id, batch.base_sequence, pack.last_timestamp_ms) == (4, 4, 5)
