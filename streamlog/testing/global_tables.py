"""ListedTables: global tables of topics that are lists."""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.processing.joins.stream_table_join import GlobalTables
from streamlog.testing.memory_topic import MemoryTopic
from streamlog.topology import Topology


class ListedTables:
    """The global tables of an app without a log."""

    def __init__(self, topology: Topology, topics: Mapping[str, MemoryTopic]) -> None:
        self.tables = GlobalTables(topology.global_tables)
        self._topics = {name: topics[name] for name in self.tables.topics}
        self._read = dict.fromkeys(self._topics, 0)

    def follow(self) -> None:
        """Take in what has come to the topics since the last time."""
        for name, topic in self._topics.items():
            records = [record for _, record in topic.arrivals[self._read[name] :]]
            self._read[name] += len(records)
            keys, values = [r.key for r in records], [r.value for r in records]
            self.tables.apply(name, keys, values)
