"""The app's own topics, changelogs and repartition topics, and that they are those of before.

A topic that only the app writes to holds what is nowhere else: a changelog the state, a repartition
topic records that count as read upstream. If one is gone, or was created again, the app would go on
with empty state, or without these records. So the ids of all of them are written down, in the topic
of the app's versions, and compared before a worker creates what is missing. The ids of sources are
written down with them. Not done here: what these are compared for (`source_watch`, `sources`), and
what a task finds in its input (`tasks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from streamlog import repeated
from streamlog.client.admin import NewTopic
from streamlog.clock import Clock
from streamlog.errors import CorruptData, SourceLost, TopicExists
from streamlog.log import Log
from streamlog.nodes.topic_spec import SourceLostPolicy
from streamlog.protocol.schema import ZERO_UUID, id_text
from streamlog.record import TopicPartition
from streamlog.topology import Topology
from streamlog.worker.topics.app_topics import read_whole_topic
from streamlog.worker.topics.lost_sources import FAIL
from streamlog.worker.topics.version_log import BROKER_DEFAULT, CONFIGS, OWN_TOPICS, version_topic

logger = repeated.logger(__name__)

GIVEN_UP_MAX = 1_000
"""Ids of topics that were given up, the newest: copies of their state may be anywhere."""


class _Wire(msgspec.Struct, frozen=True):
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
        return msgspec.json.encode(_Wire(_text(self.ids), given_up, _text(self.sources), begins))

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
            wire = msgspec.json.decode(data, type=_Wire)
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

    def __init__(self, log: Log, topology: Topology, clock: Clock) -> None:
        self._log = log
        self._topology = topology
        self._clock = clock

    async def check(
        self, *, source_lost: SourceLostPolicy | None, accept_state_loss: bool
    ) -> OwnTopics:
        """Compare, before anything is created; returns what was written down.

        Raises:
            SourceLost: a topic is gone or was created again, and nobody has agreed to that.
        """
        topic = version_topic(self._topology.app_id)
        before = decode_own_topics(await read_whole_topic(self._log, topic, self._clock))
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
