"""Version log: what an app records about itself, in topics of its own.

`<app>-topology` holds the versions of the topology, the ids of the app's own topics and sources,
and the app's contract (`contract_log`). A worker compares the program that it is about to run with
the last version, reports the difference, and refuses to lose state without consent. A record names
the version that it follows. If another writer was first, the record does not count, and its writer
compares again, so all workers see one history. The ids show whether a changelog or a repartition
topic was deleted or created again; the worker then refuses to start, because it would continue with
empty state.

`<app>-hand-overs` holds a record for each snapshot that the app's state began with, written in the
transaction that wrote the rows. It makes a repeated hand-over harmless, and tells a worker where
the sorted files lie. The changelog holds the same rows, so files that are missing, damaged or too
old are ignored.

Not done here: the comparison of topologies (`blueprints/topology_difference`), and the hand-over
itself (`operations/hand_over`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import TopologyDifference, difference
from streamlog.client.admin import NewTopic
from streamlog.connect.declared_connectors import Connector, connector_entries
from streamlog.errors import (
    CorruptData,
    SourceLost,
    StateLost,
    StreamlogError,
    TopicExists,
    TopologyError,
    UsageError,
    quantity,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.processing.task_progress import Era
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.snapshots import Snapshot
from streamlog.tables.local_disk.rocksdb_store import RocksStore
from streamlog.tables.state.changelog import changelog_offset, store_offset
from streamlog.tables.stores.store import Change
from streamlog.topology import Topology
from streamlog.worker.topics.app_topics import DELETE_RETENTION_MS, read_whole_topic
from streamlog.worker.topics.lost_sources import FAIL

logger = repeated.logger(__name__)

HAND_OVER_FORMAT: Final = 1
FILES_AGE_MS_MAX: Final = DELETE_RETENTION_MS // 2
"""The age up to which the snapshot's files may fill a store. Tombstones that followed an older
snapshot may be compacted away, so the files could bring back deleted rows."""


class TaskBase(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets of a handed-over task state in its changelog."""

    fence: int
    """The offset of the fence that was written with it."""
    progress: int
    """The offset of the last record: the task's progress. All rows come before it."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """The promotion that a hand-over was part of."""

    version: str
    before: str
    """The URL of the snapshot of the former app."""


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that an app's state began with."""

    format: int = HAND_OVER_FORMAT
    snapshot: str
    """The id of the snapshot."""
    url: str
    wall_ms: int
    """The time of the hand-over, in milliseconds since 1970."""
    cut_ms: int | None
    mode: str
    fingerprint: str
    tasks: dict[str, TaskBase]
    """The tasks with state, by `TaskId` as text."""
    promotion: Promotion | None = None
    """The promotion, if the snapshot is that of a promoted version."""

    def encode(self) -> bytes:
        """Encode the record as JSON."""
        return msgspec.json.encode(self)


def hand_over_topic(app_id: str) -> str:
    """Return the topic of an app's hand-overs."""
    return f"{app_id}-hand-overs"


def decode_hand_overs(records: Iterable[tuple[int, bytes]]) -> list[HandOver]:
    """Return the hand-overs in records, in order; a record is an offset and a value.

    Raises:
        CorruptData: a record is malformed, or a newer streamlog wrote it.
    """
    found: list[HandOver] = []
    for offset, data in records:
        try:
            each = msgspec.json.decode(data, type=HandOver)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the hand-over record at offset {offset} is malformed: {error}"
            ) from error
        if each.format != HAND_OVER_FORMAT:
            raise CorruptData(
                f"the hand-over record at offset {offset} has format {each.format}, but this "
                f"streamlog reads format {HAND_OVER_FORMAT}: use the newer streamlog that wrote it"
            )
        found.append(each)
    return found


async def read_hand_overs(log: Log, app_id: str) -> list[HandOver]:
    """Return the committed hand-overs of an app, in order.

    Raises:
        CorruptData: a record is malformed, or a newer streamlog wrote it.
        RequestTimedOut: the topic can't be read to its end.
    """
    return decode_hand_overs(await read_whole_topic(log, hand_over_topic(app_id)))


@dataclass(frozen=True, slots=True)
class Base:
    """The snapshot files that the state of a task may begin with."""

    hand_over: HandOver
    task: str
    """The task's id as text."""

    def is_of_use(self, store: RocksStore, *, wall_ms: int) -> bool:
        """Return whether the files are newer than the store, and young enough."""
        where = self.hand_over.tasks.get(self.task)
        is_young = wall_ms - self.hand_over.wall_ms < FILES_AGE_MS_MAX
        # A store at or beyond the progress record has the rows of the hand-over already.
        return where is not None and is_young and changelog_offset(store) < where.progress

    def adopt(self, store: RocksStore, keep: Mapping[bytes, bytes], owner_key: bytes) -> bool:
        """Replace the store's content by the snapshot's rows of the task; returns whether it could.

        Blocks on the disk and on the snapshot's file system. After a failure the store is empty or
        unchanged; the changelog fills it in both cases.

        Args:
            store: the store of the task.
            keep: reserved rows that stay.
            owner_key: the reserved key of the owner's fence.
        """
        where = self.hand_over.tasks[self.task]
        number, _, partition = self.task.partition("_")
        try:
            snapshot = Snapshot.open(self.hand_over.url)
            entry = snapshot.entry(int(number), int(partition))
            if entry is None or snapshot.id != self.hand_over.snapshot:
                raise CorruptData(
                    f"{self.hand_over.url} is not the snapshot {self.hand_over.snapshot} that was"
                    f" handed over, or lacks task {self.task}"
                )
            # The fence of the hand-over, as if it had been read from the changelog.
            rows: list[Change] = [*keep.items(), (owner_key, where.fence.to_bytes(8, "big"))]
            # The changelog is read on at the progress record, which the files do not contain.
            rows.append(store_offset(where.progress))
            with snapshot.files(entry) as paths:
                store.replace(paths, rows)
        except StreamlogError as error:
            logger.info("task %s is restored from its changelog alone: %s", self.task, error)
            return False
        logger.info(
            "task %s begins with %s of %s", self.task, quantity(entry.rows, "row"), snapshot.url
        )
        return True


FORMAT_VERSION = 1
"""The format of a version record. A reader refuses other formats."""
CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""All versions are kept: there is one record for each change of the program."""
BROKER_DEFAULT = -1
OWN_TOPICS = b'{"own_topics"'
"""The first bytes of the records in the version topic that hold topic ids."""
CONTRACT: Final = b'{"contract"'
"""The first bytes of the records in the version topic that hold the app's contract."""
VERSION_TOPIC_SUFFIX: Final = "-topology"
ATTEMPTS_MAX = 20
"""An attempt fails only if another program has written a version meanwhile."""


class _VersionRecord(msgspec.Struct, frozen=True):
    """The record of a version."""

    format: int
    follows: int
    version: int
    era: int
    lost: dict[str, int]
    blueprint: Blueprint


@dataclass(frozen=True, slots=True)
class Version:
    """The current version of an app's topology."""

    offset: int
    """The offset of its record."""
    number: int
    era: Era
    blueprint: Blueprint


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """The difference between a program and the current version."""

    before: Version | None
    blueprint: Blueprint
    difference: TopologyDifference = field(default_factory=TopologyDifference)

    @property
    def is_settled(self) -> bool:
        """Whether the program is the current version, so no record is needed."""
        if self.before is None:
            return not self.blueprint.is_recorded
        return self.before.blueprint == self.blueprint

    @property
    def number(self) -> int:
        """The number of the program's version."""
        if self.before is None:
            return 1
        return self.before.number + (not self.is_settled)

    @property
    def era(self) -> Era:
        """The era of the program's version: the stores that were given up, with this change's."""
        before = Era() if self.before is None else self.before.era
        if not self.difference.losses:
            return before
        number = before.number + 1
        lost = {loss.store: number for loss in self.difference.losses if loss.store}
        return Era(number, {**before.lost, **lost})

    def encode(self) -> bytes:
        """Encode the record of the program's version."""
        follows = -1 if self.before is None else self.before.offset
        era = self.era
        return msgspec.json.encode(
            _VersionRecord(
                FORMAT_VERSION, follows, self.number, era.number, dict(era.lost), self.blueprint
            ),
            order="deterministic",
        )


def version_topic(app_id: str) -> str:
    """Return the topic of an app's versions, topic ids and contract."""
    return f"{app_id}{VERSION_TOPIC_SUFFIX}"


async def recorded_blueprints(log: Log, where: str, app_ids: Collection[str]) -> list[Blueprint]:
    """Return the current topologies of apps, as their workers have recorded them.

    Args:
        log: the log of the workers.
        where: its URL, for messages.
        app_ids: the apps.

    Raises:
        UsageError: the log has no record of an app.
        CorruptData: a record is malformed, or a newer streamlog wrote it.
    """
    found = []
    for app_id in sorted(app_ids):
        version = current(await read_whole_topic(log, version_topic(app_id)))
        if version is None:
            raise UsageError(f"{where} has no record of app {app_id!r}: its workers write it")
        found.append(version.blueprint)
    return found


def current(records: Iterable[tuple[int, bytes]]) -> Version | None:
    """Return the current version after these records, each an offset and a value.

    Raises:
        CorruptData: a record is malformed, or a newer streamlog wrote it.
    """
    counts: Version | None = None
    for offset, data in records:
        if data.startswith((OWN_TOPICS, CONTRACT)):
            continue
        try:
            wire = msgspec.json.decode(data, type=_VersionRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the version record at offset {offset} is malformed: {error}"
            ) from error
        if wire.format != FORMAT_VERSION:
            raise CorruptData(
                f"the version record at offset {offset} has format {wire.format}, but this "
                f"streamlog reads format {FORMAT_VERSION}: use the newer streamlog that wrote it"
            )
        # 1. The current version is at offset 4. Programs A and B both differ from it.
        # 2. A writes a record that follows 4, at offset 5. B writes one that follows 4, at 6.
        # 3. Every reader takes A's and skips B's. B reads that, compares with A's version, and may
        #    have to refuse.
        if wire.follows == (-1 if counts is None else counts.offset):
            counts = Version(offset, wire.version, Era(wire.era, wire.lost), wire.blueprint)
    return counts


def compare_versions(
    before: Version | None, topology: Topology, connectors: Iterable[Connector] | None = None
) -> VersionChange:
    """Return the difference between a program and the current version, if there is one.

    Args:
        before: the current version, if there is one.
        topology: the program's topology.
        connectors: its connectors; None if it leaves those of the current version as they are.
    """
    entries = None if before is None else before.blueprint.connectors
    if connectors is not None:
        entries = connector_entries(connectors)
    blueprint = Blueprint.of(topology, entries)
    if before is None:
        return VersionChange(before=None, blueprint=blueprint)
    found = difference(before.blueprint, blueprint)
    return VersionChange(before=before, blueprint=blueprint, difference=found)


class VersionLog:
    """The versions of one app's topology in a log."""

    def __init__(
        self, log: Log, topology: Topology, connectors: Sequence[Connector] | None = None
    ) -> None:
        """`connectors` are the program's; None leaves those of the current version as they are."""
        self._log = log
        self._topology = topology
        self._connectors = connectors
        self._topic = version_topic(topology.app_id)

    async def compare(self) -> VersionChange:
        """Return the difference between this program and the current version."""
        records = await read_whole_topic(self._log, self._topic)
        return compare_versions(current(records), self._topology, self._connectors)

    async def check(self, *, accept_state_loss: bool) -> VersionChange:
        """Return the difference between this program and the current version, if it is allowed.

        Raises:
            StateLost: state would be lost, and `accept_state_loss` is false.
        """
        change = await self.compare()
        if change.difference.losses and not accept_state_loss:
            raise StateLost(_refusal(self._topology.app_id, change.difference))
        return change

    async def settle(self, *, accept_state_loss: bool) -> VersionChange:
        """Make this program's topology the current version.

        Raises:
            StateLost: state would be lost, and `accept_state_loss` is false.
            TopologyError: other programs of this app keep writing versions.
        """
        for _ in range(ATTEMPTS_MAX):
            change = await self.check(accept_state_loss=accept_state_loss)
            if change.is_settled:
                return change
            await self._write(change)
            # Read back: the record counts only if no other writer was first.
            now = await self.compare()
            if now.is_settled:
                return change
            logger.info("another version of this app was started at the same time")
        raise TopologyError(
            f"workers of other versions of app {self._topology.app_id!r} keep starting: stop them "
            "first"
        )

    async def _write(self, change: VersionChange) -> None:
        admin = self._log.admin()
        topic = NewTopic(self._topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
        try:
            await admin.create_topics([topic])
        except TopicExists:
            logger.debug("topic %s exists", topic.name)
        async with self._log.producer(linger_ms=0) as producer:
            await (await producer.send(self._topic, change.encode(), partition=0))


def _refusal(app_id: str, found: TopologyDifference) -> str:
    lines = "\n".join(f"  {line}" for line in found.lines())
    return (
        f"app {app_id!r} would lose state; compared with the version that ran before:\n{lines}\n"
        "Nothing was started or changed. Restore the names and positions of the nodes that have "
        "state, and the names of connectors; give the app a new id to start over next to the old "
        "one; or continue without that state: worker --accept-state-loss"
    )


GIVEN_UP_MAX = 1_000
"""The number of ids of given-up topics that are kept, the newest ones. Old copies of their state
may be on any disk."""


class _OwnTopicIds(msgspec.Struct, frozen=True):
    """The record of topic ids, as hexadecimal text."""

    own_topics: dict[str, str]
    given_up: list[str]
    sources: dict[str, str] = {}
    begins: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True)
class OwnTopics:
    """The recorded ids of an app's topics."""

    ids: dict[str, bytes] = field(default_factory=dict)
    """The ids of the app's changelogs and repartition topics, by name."""
    given_up: tuple[bytes, ...] = ()
    """The ids of lost topics that the user has agreed to continue without."""
    sources: Mapping[str, bytes] = field(default_factory=dict)
    """The ids of the topics that the app reads, by name."""
    begins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Source that was created again to the first offset to read in each partition."""

    def begin_of(self, part: TopicPartition, topic_id: bytes) -> int:
        """Return the first offset to read in a partition of the topic with this id."""
        begins = self.begins.get(part.topic, ())
        # The offsets are valid for one life of the topic: created once more, it is read from its
        # start.
        is_same = self.sources.get(part.topic) == topic_id
        return begins[part.partition] if is_same and part.partition < len(begins) else 0

    def encode(self) -> bytes:
        """Encode the record."""
        given_up = [each.hex() for each in self.given_up]
        begins = dict(sorted(self.begins.items()))
        return msgspec.json.encode(
            _OwnTopicIds(_text(self.ids), given_up, _text(self.sources), begins)
        )

    def followed_by(self, present: dict[str, bytes]) -> OwnTopics:
        """Return the record after a look at the topics that are present, by name."""
        # State of these topics may lie on any disk, and is deleted there without asking again.
        replaced = [at for name, at in self.ids.items() if present.get(name, at) != at]
        given_up = (*self.given_up, *replaced)[-GIVEN_UP_MAX:]
        # A topic that is absent keeps its id, so that the next start notices the loss as well.
        return replace(self, ids={**self.ids, **present}, given_up=given_up)


def decode_own_topics(records: Iterable[tuple[int, bytes]]) -> OwnTopics:
    """Return the last recorded ids among these records, each an offset and a value.

    Raises:
        CorruptData: a record is malformed.
    """
    found = OwnTopics()
    for offset, data in records:
        if not data.startswith(OWN_TOPICS):
            continue
        try:
            wire = msgspec.json.decode(data, type=_OwnTopicIds)
            found = OwnTopics(
                _ids(wire.own_topics),
                tuple(map(bytes.fromhex, wire.given_up)),
                _ids(wire.sources),
                wire.begins,
            )
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(
                f"the record of topic ids at offset {offset} is malformed: {error}"
            ) from error
    return found


def _text(ids: Mapping[str, bytes]) -> dict[str, str]:
    return {name: each.hex() for name, each in sorted(ids.items())}


def _ids(text: Mapping[str, str]) -> dict[str, bytes]:
    return {name: bytes.fromhex(each) for name, each in text.items()}


def refuse_lost(
    topology: Topology,
    before: OwnTopics,
    present: dict[str, bytes],
    *,
    source_lost: SourceLostPolicy | None,
    accept_state_loss: bool,
) -> None:
    """Report the app's own topics that were deleted or created again since they were recorded.

    Args:
        topology: the app's topology.
        before: the recorded ids.
        present: the present ids by name.
        source_lost: the policy for lost records; consent for repartition topics unless "fail".
        accept_state_loss: consent for changelogs.

    Raises:
        SourceLost: there is such a topic, and the user has not agreed to its loss.
    """
    changelogs = _changelogs(topology)
    for name in sorted((changelogs | _repartitions(topology)) & before.ids.keys()):
        old_id, new_id = before.ids[name], present.get(name, b"")
        if old_id == new_id:
            continue
        event = "was deleted"
        if new_id:
            event += f" and created again (id {id_text(old_id)}, now {id_text(new_id)})"
        is_changelog = name in changelogs
        loss = (
            "its state is lost"
            if is_changelog
            else "records in it that the app had not processed are lost"
        )
        has_consent = accept_state_loss if is_changelog else source_lost not in (None, FAIL)
        text = f"{name}: the app's own topic {event}: {loss}"
        if not has_consent:
            raise SourceLost(
                f"{text}. Restore the topic from a backup, or continue without: "
                + (
                    "worker --accept-state-loss (the state starts empty, and inputs are read from"
                    " their beginning)"
                    if is_changelog
                    else "worker --source-lost earliest"
                )
                + ", or give the app a new id to start over",
                topic=name,
                ids=(old_id, new_id),
            )
        logger.warning("%s; continuing without it, as it was allowed to", text)


def _changelogs(topology: Topology) -> set[str]:
    return {sub.changelog_topic for sub in topology.subtopologies if sub.changelog_topic}


def _repartitions(topology: Topology) -> set[str]:
    return {topic.name for topic in topology.topics.values() if topic.internal}


class OwnTopicsLog:
    """Compares and records the ids of an app's topics."""

    def __init__(self, log: Log, topology: Topology) -> None:
        self._log = log
        self._topology = topology

    async def check(
        self, *, source_lost: SourceLostPolicy | None, accept_state_loss: bool
    ) -> OwnTopics:
        """Compare the present topics with the recorded ids; returns the latter.

        Call it before any topic is created.

        Raises:
            SourceLost: a topic was deleted or created again, and the user has not agreed to that.
        """
        topic = version_topic(self._topology.app_id)
        before = decode_own_topics(await read_whole_topic(self._log, topic))
        refuse_lost(
            self._topology,
            before,
            await self._present(),
            source_lost=source_lost,
            accept_state_loss=accept_state_loss,
        )
        return before

    async def note(self, before: OwnTopics, now: OwnTopics) -> OwnTopics:
        """Record `now` with the present own topics, if that differs from `before`."""
        now = now.followed_by(await self._present())
        if now != before:
            topic = version_topic(self._topology.app_id)
            new = NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
            try:
                await self._log.admin().create_topics([new])
            except TopicExists:
                logger.debug("topic %s exists", topic)
            async with self._log.producer(linger_ms=0) as producer:
                await (await producer.send(topic, now.encode(), partition=0))
        return now

    async def _present(self) -> dict[str, bytes]:
        """Return the ids of the app's own topics that exist; none if brokers have no topic ids."""
        own = _changelogs(self._topology) | _repartitions(self._topology)
        found = await self._log.admin().find_topics(sorted(own))
        return {each.name: each.topic_id for each in found if each.topic_id != ZERO_UUID}
