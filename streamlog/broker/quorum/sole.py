"""SoleQuorum: the quorum of one broker, which is the controller of its cluster.

What the controller decides is appended to the metadata log as one batch, is committed once that
is on disk, and is replayed and handed on before the answer leaves. A start replays the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from streamlog.broker.config import TopicConfig
from streamlog.broker.quorum.controller import Controller
from streamlog.broker.quorum.metadata import ClusterMetadata
from streamlog.broker.quorum.metadata_records import decode_record, encode_record
from streamlog.broker.quorum.predecessor import records_of
from streamlog.broker.storage.appends import Origin
from streamlog.broker.storage.partition_log import PartitionLog
from streamlog.errors import CorruptData
from streamlog.records.batch import encode_batch, split_batches

if TYPE_CHECKING:
    from streamlog.broker.cluster_config import ClusterConfig
    from streamlog.broker.quorum.decision import Realm
    from streamlog.broker.quorum.metadata_changes import MetadataChange
    from streamlog.broker.quorum.metadata_records import MetadataRecord
    from streamlog.broker.storage.log_directory import LogDirectory
    from streamlog.clock import Clock
    from streamlog.protocol.schema import Message

METADATA_TOPIC = "__cluster_metadata"
LOAD_BYTES = 1024 * 1024
"""Read at a time at a start."""

Watcher = Callable[[list["MetadataChange"]], None]

_log = logging.getLogger(__name__)


class SoleQuorum:
    """Decides and remembers; made by `open`."""

    def __init__(self, log: PartitionLog, realm: Realm, *, clock: Clock) -> None:
        self._log = log
        self._realm = realm
        self._clock = clock
        self._controller = Controller(realm)
        self._watchers: list[Watcher] = []

    @classmethod
    def open(cls, directory: LogDirectory, realm: Realm, *, clock: Clock) -> SoleQuorum:
        """Replay the directory's metadata log, or begin it with what the directory holds.

        `realm.metadata` is brought to what is committed.

        Raises:
            CorruptData: the log, or a file from before there was one, is damaged.
            LogDirectoryError: the disk refused.
        """
        log = directory.open_own_log(METADATA_TOPIC, TopicConfig(retention_ms=-1))
        if log.damage:
            raise CorruptData(f"{METADATA_TOPIC}: {log.damage[0]}; restore the directory's copy")
        quorum = cls(log, realm, clock=clock)
        quorum._replay_all()
        if not log.log_end_offset:
            quorum._commit(tuple(records_of(directory)))
        directory.predecessors().remove()
        first = quorum._controller.on_active(clock.now_ms())
        if first is not None:
            quorum._commit(first.records)
        return quorum

    @property
    def is_active(self) -> bool:
        """It is the active controller, always."""
        return True

    @property
    def controller_id(self) -> int | None:
        """This node."""
        return self._realm.node_id

    @property
    def metadata(self) -> ClusterMetadata:
        """What is committed."""
        return self._realm.metadata

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What can be submitted."""
        return self._controller.requests

    def watch(self, watcher: Watcher) -> None:
        """Have it told of what every batch that is committed from now on has changed."""
        self._watchers.append(watcher)

    def submit(self, request: Message, version: int) -> Message:
        """Have the controller decide; the answer, once what it says is committed and applied.

        Raises:
            StreamlogError: the log could not take it; nothing was decided.
        """
        decision = self._controller.decide(request, version, self._clock.now_ms())
        self._commit(decision.records)
        if decision.answer is None:
            raise TypeError("a decision on a request has no answer")
        return decision.answer()

    def configure(self, cluster: ClusterConfig) -> None:
        """Go by other settings."""
        self._realm.cluster = cluster

    def tick(self) -> None:
        """Do what is due."""
        now_ms = self._clock.now_ms()
        while (decision := self._controller.on_tick(now_ms)) is not None:
            self._commit(decision.records)

    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do at the earliest; None for never."""
        return self._controller.next_deadline_ms()

    def close(self) -> None:
        """Nothing is decided any more. Raises what `PartitionLog.close` raises."""
        self._log.close()

    def _commit(self, records: tuple[MetadataRecord, ...]) -> None:
        if not records:
            return
        wall_ms = self._clock.wall_ms()
        batch = encode_batch([(wall_ms, None, encode_record(each), ()) for each in records])
        placed = self._log.append(batch, now_ms=self._clock.now_ms(), origin=Origin.COORDINATOR)
        self._log.flush()
        self._replay(records, placed.base_offset)

    def _replay(self, records: Iterable[MetadataRecord], base_offset: int) -> None:
        changes = [
            change
            for offset, record in enumerate(records, base_offset)
            if (change := self._realm.metadata.replay(record, offset)) is not None
        ]
        for watcher in self._watchers:
            watcher(changes)

    def _replay_all(self) -> None:
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset:
            for batch in split_batches(self._log.read(offset, max_bytes=LOAD_BYTES)):
                records = [decode_record(each.value or b"") for each in batch.records()]
                self._replay(records, batch.base_offset)
                offset = batch.next_offset
