"""GlobalStores: global tables on the disk of this worker, and how far each has been read.

A store has the rows and, behind them, the offsets that they reach to; a crash leaves older offsets
with newer rows, and reading on from there makes them equal. Rule of the file: a store is a copy, so
what can't be gone on with is read anew, without a question: that of another log, of a topic that
was made again or has lost what was not read, and one that was away for so long that the topic may
have forgotten deletions that it has missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from streamlog import repeated
from streamlog.client.offset_metadata import NO_EPOCH, OffsetAndMetadata
from streamlog.nodes.table_nodes import GlobalTableNode
from streamlog.record import TopicPartition
from streamlog.tables.local_disk.rocksdb_store import RocksBudget, RocksStore
from streamlog.tables.local_disk.task_directory import TaskDirectory

logger = repeated.logger(__name__)

AWAY_MS_MAX = 12 * 60 * 60 * 1000
"""Half of how long a compacted topic keeps deletions by default (`delete.retention.ms`)."""
_REACHED = b"\x00reached"
"""Below the keys of rows."""


class _Reached(msgspec.Struct, array_like=True):
    """How far a store has come, as it is written down."""

    cluster: str
    wall_ms: int
    offsets: dict[int, int]
    topic_id: str = ""
    """As hexadecimal text; empty if the broker tells none."""
    epochs: dict[int, int] = {}
    """By partition: the leader epoch of the record before the offset."""


class GlobalStores:
    """The stores of tables that are kept on disk, by the names of the tables."""

    def __init__(
        self,
        rocksdb: Mapping[str, RocksStore],
        directories: Mapping[str, TaskDirectory] | None = None,
        *,
        cluster: str = "",
    ) -> None:
        """`cluster` is the log's identity. Use `opened`."""
        self.rocksdb = rocksdb
        self._directories = directories or {}
        self._cluster = cluster
        self._ids: dict[str, str] = {}

    @classmethod
    def opened(
        cls, tables: Iterable[GlobalTableNode], path: str, *, memory_bytes: int, cluster: str
    ) -> GlobalStores:
        """The stores in the app's state directory; each process has its own.

        Raises:
            LogDirectoryError: directories can't be made, read or written.
        """
        names = [table.name for table in tables if table.backend == "rocksdb"]
        directories = {name: TaskDirectory(f"{path}/global/{name}") for name in names}
        stores: dict[str, RocksStore] = {}
        found = cls(stores, directories, cluster=cluster)
        try:
            for name, directory in directories.items():
                budget = RocksBudget(memory_bytes // len(names))
                stores[name] = directory.open(budget, skip_locked=True, is_standby=True)
                directory.remove_old()
        except BaseException:
            found.close()
            raise
        return found

    def places(
        self, tables: Mapping[str, Iterable[str]]
    ) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        """How far each table on disk has been read; `tables` are by topic."""
        found: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}
        for topic, names in tables.items():
            for name in names:
                reached = self._reached(name)
                if reached is not None:
                    found[name] = {
                        TopicPartition(topic, n): OffsetAndMetadata(
                            at, leader_epoch=reached.epochs.get(n, NO_EPOCH)
                        )
                        for n, at in reached.offsets.items()
                    }
        return found

    def forget(self, names: Collection[str]) -> None:
        """These tables are to be read anew: their topics were truncated."""
        for name in names:
            logger.warning("global table %s is read anew: its topic was truncated", name)
            self.rocksdb[name].delete_range(b"")

    def starts(
        self,
        tables: Mapping[str, Iterable[str]],
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        wall_ms: int,
        ids: Mapping[str, bytes],
    ) -> dict[TopicPartition, int]:
        """Where to read on, so that every table has all of its topic; `tables` are by topic.

        `ids` are those of the topics.
        """
        self._ids = {topic: topic_id.hex() for topic, topic_id in ids.items()}
        starts = dict(ends)
        for topic, names in tables.items():
            mine = {part.partition: part for part in begins if part.topic == topic}
            for name in names:
                offsets = self._offsets(name, mine, begins, ends, wall_ms)
                for number, part in mine.items():
                    starts[part] = min(starts[part], offsets.get(number, begins[part]))
        return starts

    def reached(
        self,
        tables: Mapping[str, Iterable[str]],
        places: Mapping[TopicPartition, OffsetAndMetadata],
        wall_ms: int,
    ) -> None:
        """All records before these places are in the stores."""
        for topic, names in tables.items():
            mine = {part.partition: at for part, at in places.items() if part.topic == topic}
            found = _Reached(
                self._cluster,
                wall_ms,
                {number: at.offset for number, at in mine.items()},
                self._ids.get(topic, ""),
                {number: at.leader_epoch for number, at in mine.items()},
            )
            data = msgspec.json.encode(found)
            for name in names:
                if name in self.rocksdb:
                    self.rocksdb[name].put(_REACHED, data)

    def close(self) -> None:
        """Close the stores; what is in them is there when the worker comes back."""
        for store in self.rocksdb.values():
            store.close()

    def _reached(self, name: str) -> _Reached | None:
        store = self.rocksdb.get(name)
        data = None if store is None else store.get(_REACHED)
        return None if data is None else msgspec.json.decode(data, type=_Reached)

    def _offsets(
        self,
        name: str,
        mine: Mapping[int, TopicPartition],
        begins: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        wall_ms: int,
    ) -> dict[int, int]:
        """How far a table has been read, by partition; nothing if it is to be read anew."""
        store, reached = self.rocksdb.get(name), self._reached(name)
        if store is None:
            return {}
        if reached is not None:
            known = [(mine[n], at) for n, at in reached.offsets.items() if n in mine]
            is_whole = all(begins[part] <= at <= ends[part] for part, at in known)
            is_recent = wall_ms - reached.wall_ms <= AWAY_MS_MAX
            topics = {part.topic for part in mine.values()}
            is_same = all(reached.topic_id == self._ids.get(topic, "") for topic in topics)
            if reached.cluster == self._cluster and is_same and is_whole and is_recent:
                return reached.offsets
            logger.warning(
                "global table %s is read anew: what is on disk can't be gone on with", name
            )
        store.delete_range(b"")
        return {}
