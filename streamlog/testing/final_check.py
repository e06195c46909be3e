"""What an app has stored and written in a test, read again at the end.

A worker stores state at its first commit and reads it after a restart; a test may end before
either. Rule of the file: no function of the user's is called, so tests that count calls see no
others; views and joined rows are left out for that.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.errors import ProcessingError, StreamlogError
from streamlog.nodes.stream_nodes import Entry, Sink
from streamlog.nodes.table_nodes import TableTableJoin
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing.table_rows import TableRows, prefix_of, tables_in
from streamlog.tables.stores.store import KeyValueStore, prefix_end
from streamlog.testing.memory_topic import MemoryTopic
from streamlog.topology import Subtopology, Topology


def check_state(subtopology: Subtopology, store: KeyValueStore) -> None:
    """Read all rows of the tables of a task.

    Raises:
        ProcessingError: one is not of its types.
    """
    for name, rows in tables_in(subtopology).items():
        if not rows.views and not isinstance(rows.owner, TableTableJoin):
            _check_table(rows, prefix_of(subtopology, name), store)


def check_outputs(topology: Topology, topics: Mapping[str, MemoryTopic]) -> None:
    """Read all records of topics that only the app writes to.

    Raises:
        ProcessingError: one is not of its types.
    """
    read = {node.topic.name for node in topology.nodes if isinstance(node, Entry)}
    read |= {table.topic.name for table in topology.global_tables}
    written = {node.topic.name: node.topic for node in topology.nodes if isinstance(node, Sink)}
    for name, spec in written.items():
        if name not in read:
            _check_topic(spec, topics[name])


def _check_table(rows: TableRows, prefix: bytes, store: KeyValueStore) -> None:
    for key, data in store.range(prefix, prefix_end(prefix)):
        row_key = key[len(prefix) :]
        try:
            list(rows.seen([(row_key, data)]))
        except StreamlogError as error:
            text = f"a row that {rows.name!r} has stored can't be read, key {row_key!r}: {error}"
            raise ProcessingError(text, node=rows.name) from error


def _check_topic(spec: TopicSpec, topic: MemoryTopic) -> None:
    for partition, record in topic.arrivals:
        parts = (("key", spec.key, record.key), ("value", spec.value, record.value))
        for what, serde, data in parts:
            if data is None:
                continue
            try:
                serde.loads(data)
            except Exception as error:  # noqa: BLE001 - a serde of the user's: raised again
                caught = error
            else:
                continue
            raise ProcessingError(
                f"the {what} at offset {record.offset} of {spec.name}-{partition}, which the app "
                f"has written, can't be read: {caught}",
                topic=spec.name,
                partition=partition,
                offset=record.offset,
                node=spec.name,
            ) from caught
