from __future__ import annotations

from streamlog.records.columns import FieldColumns
from streamlog.records.packed import PackedRecords
from streamlog.worker.commit import PACK_BYTES, packed


def columns(sizes: list[int], *, first: int = 0) -> FieldColumns:
    return FieldColumns.of([(first + at, None, bytes(size), ()) for at, size in enumerate(sizes)])


def test_what_is_held_back_fills_one_pack_after_the_other() -> None:
    packs: list[PackedRecords] = []
    added = 0
    number = 0
    for count in (1, 1_000, 3, 2_500):
        added += packed(packs, columns([200] * count, first=number))
        number += count
    assert added == sum(pack.size_bytes() for pack in packs)
    assert len(packs) == 1 + added // PACK_BYTES
    assert all(0.9 * PACK_BYTES < pack.size_bytes() <= PACK_BYTES for pack in packs[:-1])
    assert [ms for pack in packs for ms in pack.part(0, len(pack)).timestamps] == list(
        range(number)
    )


def test_a_record_larger_than_a_pack_is_one() -> None:
    packs: list[PackedRecords] = []
    added = packed(packs, columns([5, 2 * PACK_BYTES, 2 * PACK_BYTES, 5]))
    assert [len(pack) for pack in packs] == [1, 1, 1, 1]
    assert added == sum(pack.size_bytes() for pack in packs)
    packed(packs, columns([7, 7]))
    assert [len(pack) for pack in packs] == [1, 1, 1, 3]
