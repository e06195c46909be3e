"""Compare: the data directories of stopped brokers, held against each other and checked.

What is below the least high watermark of a partition's replicas is the same on all of them, byte
for byte but for what a replica writes itself; and every byte of every directory is sound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from streamlog.broker.storage.catalog import Catalog
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.log.segment import DELETED_SUFFIX
from streamlog.broker.storage.repair.findings import Finding, FindingKind
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.raw_partition import RawBatch
from streamlog.records.batch import LogRecord

TOLD_MAX: Final = 3
"""Differences of a partition."""


class Held(NamedTuple):
    """What a broker has of a partition."""

    records: dict[int, tuple[bytes | None, bytes | None, int]]
    """Key, value and leader epoch, by offset."""
    high_watermark: int
    next_offset: int


Place = tuple[str, int]


def held_against(directories: Mapping[int, Path]) -> list[str]:
    """What is unsound in these directories, by broker, or differs between them.

    Raises:
        LogDirectoryError: one can't be read.
    """
    found: list[str] = []
    held: dict[Place, dict[int, Held]] = defaultdict(dict)
    for node_id, directory in directories.items():
        with Inspection.open(str(directory)) as inspection:
            report = inspection.verify()
            unsound = [each for each in report.findings if not _is_to_be_removed(each)]
            found += [f"broker {node_id}: {_told(each)}" for each in unsound]
        for place, has in _held(directory):
            held[place][node_id] = has
    for place, by_node in sorted(held.items()):
        found += _differences(place, by_node)
    return found


def _is_to_be_removed(finding: Finding) -> bool:
    """Whether it was replaced lately (`file.delete.delay.ms`), by a compaction or a retention."""
    return finding.kind is FindingKind.LEFTOVER and finding.path.endswith(DELETED_SUFFIX)


def _held(directory: Path) -> Iterator[tuple[Place, Held]]:
    catalog = Catalog(OsFiles(), str(directory))
    topics, _ = catalog.topics()
    marks = catalog.high_watermarks()
    ids = {topic.name: topic.topic_id for topic in topics}
    with Inspection.open(str(directory)) as inspection:
        for stored in inspection.partitions():
            records, end = {}, 0
            for each in inspection.batches(stored):
                if isinstance(each, RawBatch):
                    epoch = each.batch.leader_epoch
                    for record in each.batch.records():
                        records[record.offset] = (*_content(record), epoch)
                    end = each.next_offset
            folder = partition_folder(ids[stored.topic], stored.partition)
            yield (stored.topic, stored.partition), Held(records, marks.get(folder, 0), end)


def _content(record: LogRecord) -> tuple[bytes | None, bytes | None]:
    return record.key, record.value


def _differences(place: Place, by_node: Mapping[int, Held]) -> Iterable[str]:
    mark = min(held.high_watermark for held in by_node.values())
    told = 0
    (first, one), *others = by_node.items()
    is_internal = place[0].startswith("__")
    for node_id, other in others:
        if other.next_offset != one.next_offset and not is_internal:
            yield (
                f"divergence: {place[0]}-{place[1]} ends at {one.next_offset} for broker {first}"
                f" and at {other.next_offset} for broker {node_id}, and all was in sync"
            )
        for offset in sorted(one.records.keys() | other.records.keys()):
            here, there = one.records.get(offset), other.records.get(offset)
            # Compaction is each replica's own affair: what both have has to be the same.
            if offset >= mark or here == there or (is_internal and None in (here, there)):
                continue
            told += 1
            if told <= TOLD_MAX:
                yield (
                    f"divergence: {place[0]}-{place[1]}@{offset} is {here} for broker {first} and"
                    f" {there} for broker {node_id}, and committed up to {mark}"
                )


def _told(finding: Finding) -> str:
    where = f"{finding.topic}-{finding.partition}"
    return (
        f"{finding.kind.value} in {where}: {finding.path} at {finding.position}: {finding.reason}"
    )
