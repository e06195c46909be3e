"""Version log: what an app records about itself, in topics of its own.

`<app>-topology` holds the versions of the topology, and the ids of the app's own topics and
sources. A worker compares the program that it is about to run with the last version, reports the
difference, and refuses to lose state without consent. A record names the version that it follows.
If another writer was first, the record does not count, and its writer compares again, so all
workers see one history. The ids show whether a changelog or a repartition topic was deleted or
created again; the worker then refuses to start, because it would continue with empty state.

`<app>-hand-overs` holds a record for each snapshot that the app's state began with, written in the
transaction that wrote the rows. It makes a repeated hand-over harmless, and tells a worker where
the sorted files lie. The changelog holds the same rows, so files that are missing, damaged or too
old are ignored.

Not done here: the comparison of topologies (`blueprints/topology_difference`), and the hand-over
itself (`operations/hand_over`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.topology_difference import TopologyDifference, difference
from streamlog.client.admin import NewTopic
from streamlog.errors import (
    CorruptData,
    SourceLost,
    StateLost,
    StreamlogError,
    TopicExists,
    TopologyError,
)
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.processing.task_progress import Era
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.record import TopicPartition
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
"""Deletions since then may have been compacted away: the changelog alone tells."""


class TaskBase(msgspec.Struct, frozen=True, kw_only=True):
    """Where the base of one task stands in its changelog."""

    fence: int
    """The offset of the owner's record that came with it."""
    progress: int
    """The offset of the last record: the task's progress. All rows come before it."""


class Promotion(msgspec.Struct, frozen=True, kw_only=True):
    """What a version has become the app with."""

    version: str
    before: str
    """URL of the snapshot of the app as it was."""


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that an app's state has begun with."""

    format: int = HAND_OVER_FORMAT
    snapshot: str
    """Its id."""
    url: str
    wall_ms: int
    cut_ms: int | None
    mode: str
    fingerprint: str
    tasks: dict[str, TaskBase]
    """Those with state, by `TaskId` as text."""
    promotion: Promotion | None = None
    """If the snapshot is that of a version that was promoted."""

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)


def hand_over_topic(app_id: str) -> str:
    """Where an app's hand-overs are."""
    return f"{app_id}-hand-overs"


def decode_hand_overs(records: Iterable[tuple[int, bytes]]) -> list[HandOver]:
    """All of them, the last one last.

    Raises:
        CorruptData: one is not readable, or a newer streamlog has written it.
    """
    found: list[HandOver] = []
    for offset, data in records:
        try:
            each = msgspec.json.decode(data, type=HandOver)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"the hand-over at offset {offset}: {error}") from error
        if each.format != HAND_OVER_FORMAT:
            raise CorruptData(
                f"the hand-over at offset {offset} has format {each.format}, this streamlog reads "
                f"{HAND_OVER_FORMAT}: a newer one has written it; use that one"
            )
        found.append(each)
    return found


async def read_hand_overs(log: Log, app_id: str) -> list[HandOver]:
    """All hand-overs of an app that count, the last one last.

    Raises:
        CorruptData: one is not readable, or a newer streamlog has written it.
        RequestTimedOut: the log does not give what it said to have.
    """
    return decode_hand_overs(await read_whole_topic(log, hand_over_topic(app_id)))


@dataclass(frozen=True, slots=True)
class Base:
    """What a task may begin with."""

    hand_over: HandOver
    task: str

    def is_of_use(self, store: RocksStore, *, wall_ms: int) -> bool:
        """Whether its files are newer than what a store has."""
        where = self.hand_over.tasks.get(self.task)
        is_young = wall_ms - self.hand_over.wall_ms < FILES_AGE_MS_MAX
        return where is not None and is_young and changelog_offset(store) < where.progress

    def adopt(self, store: RocksStore, keep: Mapping[bytes, bytes], owner_key: bytes) -> bool:
        """Let the store hold what the snapshot has of the task; False if that can't be had.

        Waits for the disk and for the place of the snapshot. Where it fails, the store may be
        empty, or as it was; the changelog fills it either way.

        Args:
            store: of the task.
            keep: reserved rows that stay.
            owner_key: where the store remembers who owns it.
        """
        where = self.hand_over.tasks[self.task]
        number, _, partition = self.task.partition("_")
        try:
            snapshot = Snapshot.open(self.hand_over.url)
            entry = snapshot.entry(int(number), int(partition))
            if entry is None or snapshot.id != self.hand_over.snapshot:
                raise CorruptData(f"{snapshot!r} is another one, or has no task {self.task}")
            rows: list[Change] = [*keep.items(), (owner_key, where.fence.to_bytes(8, "big"))]
            # What comes next is the task's progress.
            rows.append(store_offset(where.progress))
            with snapshot.files(entry) as paths:
                store.replace(paths, rows)
        except StreamlogError as error:
            logger.info("task %s is restored from its changelog alone: %s", self.task, error)
            return False
        logger.info("task %s begins with %d rows of %s", self.task, entry.rows, snapshot.url)
        return True


FORMAT_VERSION = 1
"""Of a record. A reader refuses what it does not know."""
CONFIGS = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""All versions stay: there is one record for each change of the program."""
BROKER_DEFAULT = -1
OWN_TOPICS = b'{"own_topics"'
"""So begin records of `version_log`, which are no versions."""
ATTEMPTS_MAX = 20
"""Each one that fails is another program's success."""


class _VersionRecord(msgspec.Struct, frozen=True):
    """A version as it is written."""

    format: int
    follows: int
    version: int
    era: int
    lost: dict[str, int]
    blueprint: Blueprint


@dataclass(frozen=True, slots=True)
class Version:
    """A version that counts."""

    offset: int
    number: int
    era: Era
    blueprint: Blueprint


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange:
    """What a worker makes of the version that it found."""

    before: Version | None
    blueprint: Blueprint
    difference: TopologyDifference = field(default_factory=TopologyDifference)

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to be recorded."""
        if self.before is None:
            return not self.blueprint.nodes
        return self.before.blueprint == self.blueprint

    @property
    def number(self) -> int:
        """Of the version that this worker runs."""
        if self.before is None:
            return 1
        return self.before.number + (not self.is_settled)

    @property
    def era(self) -> Era:
        """What has been given up, this change included."""
        before = Era() if self.before is None else self.before.era
        if not self.difference.losses:
            return before
        number = before.number + 1
        given_up = {loss.store: number for loss in self.difference.losses if loss.store}
        return Era(number, {**before.lost, **given_up})

    def encode(self) -> bytes:
        """The record of the new version."""
        follows = -1 if self.before is None else self.before.offset
        era = self.era
        return msgspec.json.encode(
            _VersionRecord(
                FORMAT_VERSION, follows, self.number, era.number, dict(era.lost), self.blueprint
            ),
            order="deterministic",
        )


def version_topic(app_id: str) -> str:
    """Where the versions of an app's topology are."""
    return f"{app_id}-topology"


def current(records: Iterable[tuple[int, bytes]]) -> Version | None:
    """The version that counts after these records, offset and value each.

    Raises:
        CorruptData: one is not readable, or a newer streamlog has written it.
    """
    counts: Version | None = None
    for offset, data in records:
        if data.startswith(OWN_TOPICS):
            continue
        try:
            wire = msgspec.json.decode(data, type=_VersionRecord)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"topology version at offset {offset}: {error}") from error
        if wire.format != FORMAT_VERSION:
            raise CorruptData(
                f"topology version at offset {offset} has format {wire.format}, this streamlog "
                f"reads {FORMAT_VERSION}: a newer one has written it; use that one"
            )
        if wire.follows == (-1 if counts is None else counts.offset):
            counts = Version(offset, wire.version, Era(wire.era, wire.lost), wire.blueprint)
    return counts


def compare_versions(before: Version | None, topology: Topology) -> VersionChange:
    """What a program changes."""
    blueprint = Blueprint.of(topology)
    if before is None:
        return VersionChange(before=None, blueprint=blueprint)
    found = difference(before.blueprint, blueprint)
    return VersionChange(before=before, blueprint=blueprint, difference=found)


class VersionLog:
    """The versions of one app's topology in a log."""

    def __init__(self, log: Log, topology: Topology) -> None:
        self._log = log
        self._topology = topology
        self._place = TopicPartition(version_topic(topology.app_id), 0)

    async def compare(self) -> VersionChange:
        """What this program changes of what the log knows."""
        records = await read_whole_topic(self._log, self._place.topic)
        return compare_versions(current(records), self._topology)

    async def check(self, *, accept_state_loss: bool) -> VersionChange:
        """The same, unless it is to be refused.

        Raises:
            StateLost: state would be lost, and nobody has agreed to that.
        """
        change = await self.compare()
        if change.difference.losses and not accept_state_loss:
            raise StateLost(_refusal(self._topology.app_id, change.difference))
        return change

    async def settle(self, *, accept_state_loss: bool) -> VersionChange:
        """Make this program's topology the current version.

        Raises:
            StateLost: as `check`.
            TopologyError: other programs of the same app do the same, again and again.
        """
        for _ in range(ATTEMPTS_MAX):
            change = await self.check(accept_state_loss=accept_state_loss)
            if change.is_settled:
                return change
            await self._write(change)
            now = await self.compare()
            if now.is_settled:
                return change
            logger.info("another version of this app was started at the same time")
        raise TopologyError(
            f"other versions of app {self._topology.app_id!r} keep starting: stop them first"
        )

    async def _write(self, change: VersionChange) -> None:
        admin = self._log.admin()
        topic = NewTopic(self._place.topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
        try:
            await admin.create_topics([topic])
        except TopicExists:
            logger.debug("topic %s is there", topic.name)
        async with self._log.producer(linger_ms=0) as producer:
            await (await producer.send(self._place.topic, change.encode(), partition=0))


def _refusal(app_id: str, found: TopologyDifference) -> str:
    lines = "\n".join(f"  {line}" for line in found.lines())
    return (
        f"app {app_id!r} would lose state; against the version that ran before:\n{lines}\n"
        "nothing was started or changed. Give what has moved its old name and place, give the app "
        "a new id to begin afresh beside the old one, or go on without that state: "
        "worker --accept-state-loss"
    )


GIVEN_UP_MAX = 1_000
"""Ids of topics that were given up, the newest: copies of their state may be anywhere."""


class _OwnTopicIds(msgspec.Struct, frozen=True):
    """The ids as they are written, as hexadecimal text."""

    own_topics: dict[str, str]
    given_up: list[str]
    sources: dict[str, str] = {}
    begins: dict[str, tuple[int, ...]] = {}


@dataclass(frozen=True, slots=True)
class OwnTopics:
    """The app's own topics by name, as they were written down last."""

    ids: dict[str, bytes] = field(default_factory=dict)
    given_up: tuple[bytes, ...] = ()
    """Ids of topics that were lost, and that the user has agreed to go on without."""
    sources: Mapping[str, bytes] = field(default_factory=dict)
    """The ids of the topics that the app reads, by name."""
    begins: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Offsets by partition at which the app begins to read sources that were created again."""

    def begin_of(self, part: TopicPartition, topic_id: bytes) -> int:
        """Where the app begins in a partition of the topic with this id; 0: at its beginning."""
        begins = self.begins.get(part.topic, ())
        is_same = self.sources.get(part.topic) == topic_id
        return begins[part.partition] if is_same and part.partition < len(begins) else 0

    def encode(self) -> bytes:
        """As a record."""
        given_up = [each.hex() for each in self.given_up]
        begins = dict(sorted(self.begins.items()))
        return msgspec.json.encode(
            _OwnTopicIds(_text(self.ids), given_up, _text(self.sources), begins)
        )

    def followed_by(self, present: dict[str, bytes]) -> OwnTopics:
        """With the topics that there are now."""
        replaced = [at for name, at in self.ids.items() if present.get(name, at) != at]
        given_up = (*self.given_up, *replaced)[-GIVEN_UP_MAX:]
        return replace(self, ids={**self.ids, **present}, given_up=given_up)


def decode_own_topics(records: Iterable[tuple[int, bytes]]) -> OwnTopics:
    """What was written down last, of all records of the topic, offset and value each.

    Raises:
        CorruptData: it is not readable.
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
            raise CorruptData(f"own topics at offset {offset} of the versions: {error}") from error
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
    """Tell of own topics that are not those that were written down.

    Raises:
        SourceLost: one of them is gone or was created again, and nobody has agreed to that.
    """
    changelogs = _changelogs(topology)
    for name in sorted((changelogs | _repartitions(topology)) & before.ids.keys()):
        old_id, new_id = before.ids[name], present.get(name, b"")
        if old_id == new_id:
            continue
        what = "was deleted"
        if new_id:
            what += f" and created again (id {id_text(old_id)}, now {id_text(new_id)})"
        is_changelog = name in changelogs
        holds = (
            "the state that it held is gone"
            if is_changelog
            else ("records in it that the app had not taken yet are gone")
        )
        agreed = accept_state_loss if is_changelog else source_lost not in (None, FAIL)
        text = f"{name}: the app's own topic {what}: {holds}"
        if not agreed:
            raise SourceLost(
                f"{text}. Restore the topic from a backup, or go on without: "
                + (
                    "worker --accept-state-loss (the state begins empty, inputs are read from"
                    " their beginning)"
                    if is_changelog
                    else "worker --source-lost earliest"
                )
                + ", or give the app a new id to begin afresh",
                topic=name,
                ids=(old_id, new_id),
            )
        logger.warning("%s; going on without, as was agreed", text)


def _changelogs(topology: Topology) -> set[str]:
    return {sub.changelog_topic for sub in topology.subtopologies if sub.changelog_topic}


def _repartitions(topology: Topology) -> set[str]:
    return {topic.name for topic in topology.topics.values() if topic.internal}


class OwnTopicsLog:
    """Where the ids are written down."""

    def __init__(self, log: Log, topology: Topology) -> None:
        self._log = log
        self._topology = topology

    async def check(
        self, *, source_lost: SourceLostPolicy | None, accept_state_loss: bool
    ) -> OwnTopics:
        """Compare, before anything is created; returns what was written down.

        Raises:
            SourceLost: a topic is gone or was created again, and nobody has agreed to that.
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
        """Write down `now`, with the own topics that there are, if that is news since `before`."""
        now = now.followed_by(await self._present())
        if now != before:
            topic = version_topic(self._topology.app_id)
            new = NewTopic(topic, 1, replication_factor=BROKER_DEFAULT, configs=CONFIGS)
            try:
                await self._log.admin().create_topics([new])
            except TopicExists:
                logger.debug("topic %s is there", topic)
            async with self._log.producer(linger_ms=0) as producer:
                await (await producer.send(topic, now.encode(), partition=0))
        return now

    async def _present(self) -> dict[str, bytes]:
        """The app's own topics that there are, if brokers tell ids."""
        own = _changelogs(self._topology) | _repartitions(self._topology)
        found = await self._log.admin().find_topics(sorted(own))
        return {each.name: each.topic_id for each in found if each.topic_id != ZERO_UUID}
