"""TopicControl: the controller's decisions on topics, and the choice of brokers for replicas.

Replicas are assigned as in Kafka's StripedReplicaPlacer: the racks take turns, the brokers of a
rack take turns, and leaders are spread evenly.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

from streamlog.broker.config.broker import PARTITIONS_MAX, TopicConfig
from streamlog.broker.config.settings import SettingSource
from streamlog.broker.named_topics import MIRRORED_LOGS
from streamlog.broker.quorum.controller.config_control import inherited_source
from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.metadata.cluster_metadata import TOPIC_RESOURCE, TopicRegistration
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.broker.quorum.metadata.mirror_topics import MirrorState
from streamlog.broker.quorum.metadata.registrations import NO_LEADER, UNASSIGNED_DIRECTORY
from streamlog.broker.quorum.raft.raft_wire import METADATA_TOPIC
from streamlog.errors import ConfigError, LogError, TopicExists, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.metadata_log import (
    ConfigRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from streamlog.protocol.schema import ZERO_UUID, id_text


def assign_replicas(
    row: Sequence[int], racks: Mapping[int, str], partitions: Iterable[int], copies: int, start: int
) -> list[tuple[int, ...]]:
    """Return the replicas of each partition; the first one is the preferred leader.

    Args:
        row: the brokers in the order of `assign_in_order`.
        racks: the rack of each broker; empty to ignore racks.
        partitions: the partition numbers.
        copies: the replicas per partition, at most the number of brokers.
        start: the position in `row` of partition 0's first replica.
    """
    return [_replicas(row, racks, start + partition, copies) for partition in partitions]


def assign_in_order(brokers: Iterable[int], racks: Mapping[int, str]) -> list[int]:
    """Return the brokers in order of their ids; with racks, one broker of each rack in turn."""
    known = sorted(brokers)
    if not racks:
        return known
    by_rack: dict[str, list[int]] = {}
    for broker in known:
        by_rack.setdefault(racks[broker], []).append(broker)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker for one in rounds for broker in one if broker is not None]


def racks_of(brokers: Iterable[tuple[int, str | None]]) -> dict[int, str]:
    """Return the rack of each broker; empty if a broker has no rack."""
    racks = dict(brokers)
    return {} if None in racks.values() else {b: rack for b, rack in racks.items() if rack}


def _replicas(
    row: Sequence[int], racks: Mapping[int, str], first: int, copies: int
) -> tuple[int, ...]:
    # The partition with the next number begins one broker further: so leaders are spread evenly.
    count = len(row)
    order = [row[(first + step) % count] for step in range(count)]
    chosen: list[int] = []
    taken: set[str] = set()
    while len(chosen) < copies:
        left = [broker for broker in order if broker not in chosen]
        elsewhere = [broker for broker in left if racks.get(broker) not in taken]
        if racks and not elsewhere:
            taken.clear()  # Every rack has a replica: begin the next round of racks.
            continue
        broker = elsewhere[0] if racks else left[0]
        chosen.append(broker)
        if racks:
            taken.add(racks[broker])
    return tuple(chosen)


TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
"""Kafka's rule for topic names, which also excludes "." and ".."."""
DEFAULT = -1
"""The number of partitions or replicas that leaves the choice to the cluster (KIP-464)."""
TOPICS_BY_STATE_VERSION = 6
"""The first DeleteTopics version that names topics by name or by id."""
_ID_BYTES = 16

Replicas = tuple[int, ...]


class TopicControl:
    """Topics, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(CreateTopicsRequest, self.create),
                decides(DeleteTopicsRequest, self.delete),
                decides(CreatePartitionsRequest, self.add_partitions),
            ]
        )

    # ---- creation ----

    def create(
        self, request: CreateTopicsRequest, _: int, __: int
    ) -> Decision[CreateTopicsResponse]:
        """Create topics; with `validate_only`, only check the request."""
        counts = Counter(topic.name for topic in request.topics)
        records: list[MetadataRecord] = []
        results = []
        for topic in request.topics:
            try:
                _check_once(topic.name, counts)
                _check_not_reserved(topic.name)
                result, made = self.created(topic)
            except LogError as error:
                result = CreatableTopicResult(
                    name=topic.name,
                    error_code=error.code,
                    error_message=str(error),
                    configs=None,
                )
            else:
                if request.validate_only:
                    # The random id means nothing: the real creation will draw another.
                    result.topic_id = ZERO_UUID
                else:
                    records += made
            results.append(result)
        return respond(CreateTopicsResponse(topics=results), records)

    def created(
        self, topic: CreatableTopic, topic_id: bytes = ZERO_UUID
    ) -> tuple[CreatableTopicResult, list[MetadataRecord]]:
        """Return the result and the records of a new topic.

        Args:
            topic: the topic.
            topic_id: its id; by default, and if a topic has it already, a new one.

        Raises:
            LogError: the topic can't be created.
        """
        check_name(topic.name)
        if topic.name == METADATA_TOPIC:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{METADATA_TOPIC} is the controllers' log and can't be created as a topic: choose"
                " another name",
            )
        if self._context.metadata.topic(topic.name) is not None:
            raise TopicExists(f"topic {topic.name} exists already: delete it first, or use it")
        assigned = self._assigned(topic) if topic.assignments else self._placed(topic)
        configs = _texts(topic)
        effective = self._effective(configs)
        if not any(topic_id[:8]) or topic_id in self._context.metadata.topics:
            topic_id = self._new_id()
        result = CreatableTopicResult(
            name=topic.name,
            topic_id=topic_id,
            num_partitions=len(assigned),
            replication_factor=len(assigned[0]),
            configs=[
                CreatableTopicConfigs(
                    name=name,
                    value=value,
                    config_source=(
                        SettingSource.TOPIC
                        if name in configs
                        else inherited_source(self._context, name)
                    ),
                )
                for name, value in effective.as_texts().items()
            ],
        )
        return result, [
            TopicRecord(name=topic.name, topic_id=topic_id),
            *(
                ConfigRecord(
                    resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value
                )
                for name, value in configs.items()
            ),
            *self._partitions(topic_id, assigned, effective, first=0),
        ]

    def _partitions(
        self,
        topic_id: bytes,
        assigned: Sequence[Replicas],
        config: TopicConfig,
        *,
        first: int,
        epoch: int = 0,
    ) -> Iterator[PartitionRecord]:
        active = self._context.active()
        for number, replicas in enumerate(assigned, first):
            isr = [each for each in replicas if each in active]
            # Nothing is committed yet, so every replica has all committed records, even on a broker
            # that is away: it may lead while too few are in sync to commit (KIP-966).
            is_enough = len(isr) >= config.min_insync(len(replicas))
            eligible = [] if is_enough else [each for each in replicas if each not in isr]
            yield PartitionRecord(
                partition_id=number,
                topic_id=topic_id,
                replicas=list(replicas),
                isr=isr,
                leader=isr[0] if isr else NO_LEADER,
                leader_epoch=epoch,
                partition_epoch=0,
                directories=[
                    self._context.directory(each)
                    if each in (*isr, *eligible)
                    else UNASSIGNED_DIRECTORY
                    for each in replicas
                ],
                eligible_leader_replicas=eligible or None,
            )

    def _placed(self, topic: CreatableTopic) -> list[Replicas]:
        """Return the replicas that the cluster chooses for the partitions of a new topic."""
        context = self._context
        count = topic.num_partitions
        if count == DEFAULT:
            count = context.node_config().num_partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise error_for(
                ErrorCode.INVALID_PARTITIONS,
                f"{topic.name}: the number of partitions is {count}, not 1 to {PARTITIONS_MAX}",
            )
        copies = topic.replication_factor
        if copies == DEFAULT:
            copies = context.cluster.copies(context.brokers_expected(topic.name))
        row, racks = self._row(topic.name, copies)
        return assign_replicas(row, racks, range(count), copies, context.chance.randrange(len(row)))

    def _row(self, name: str, copies: int) -> tuple[list[int], dict[int, str]]:
        """Return the brokers that get replicas, in order, and their racks.

        These are the live brokers if there are enough of them. Otherwise brokers that are away are
        added, and if need be those that are shutting down. So a topic that is created during a
        rolling restart has all its replicas.
        """
        context = self._context
        cordoned = context.cordoned()
        active = context.active() - cordoned
        brokers = [
            each for each in context.metadata.brokers.values() if each.broker_id not in cordoned
        ]
        staying = [each for each in brokers if not each.is_shutting_down]
        if len(active) >= copies:
            brokers = [each for each in brokers if each.broker_id in active]
        elif len(staying) >= copies:
            brokers = staying
        # Without a live broker the partitions would have no leader.
        if not active or not 1 <= copies <= len(brokers):
            count = len(brokers)
            detail = "no broker is alive" if count else "no broker is registered"
            if active:
                there = "there is 1 broker" if count == 1 else f"there are {count} brokers"
                ask = "1" if count == 1 else f"1 to {count}"
                detail = f"the replication factor is {copies}, and {there}; ask for {ask}"
            if cordoned:
                detail += f"; brokers {sorted(cordoned)} are cordoned"
            raise error_for(ErrorCode.INVALID_REPLICATION_FACTOR, f"{name}: {detail}")
        racks = racks_of((each.broker_id, each.rack) for each in brokers)
        return assign_in_order((each.broker_id for each in brokers), racks), racks

    def _assigned(self, topic: CreatableTopic) -> list[Replicas]:
        """Return the replicas that the request assigns to the partitions."""
        if topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{topic.name}: with assignments, num_partitions and replication_factor must be -1",
            )
        numbered = sorted(topic.assignments, key=lambda each: each.partition_index)
        count = len(numbered)
        if [each.partition_index for each in numbered] != list(range(count)) or (
            count > PARTITIONS_MAX
        ):
            raise error_for(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{topic.name}: number up to {PARTITIONS_MAX} partitions from 0 without gaps",
            )
        assigned = [tuple(each.broker_ids) for each in numbered]
        self._check_assigned(topic.name, assigned, copies=len(assigned[0]))
        return assigned

    def _check_assigned(self, name: str, assigned: Sequence[Replicas], *, copies: int) -> None:
        brokers = sorted(self._context.metadata.brokers)
        active, cordoned = self._context.active(), self._context.cordoned()
        for replicas in assigned:
            if len({*replicas}) < len(replicas) or not {*replicas} <= {*brokers}:
                only = f"broker {brokers[0]} is the only broker" if len(brokers) == 1 else ""
                detail = only or f"name each of brokers {brokers} at most once"
            elif len(replicas) != copies or not replicas:
                factor = max(copies, 1)
                detail = f"brokers {list(replicas)} do not match the replication factor, {factor}"
            elif closed := sorted({*replicas} & cordoned):
                detail = f"broker {closed[0]} is cordoned: uncordon it, or name another"
            elif not {*replicas} & active:
                detail = f"none of brokers {list(replicas)} is alive"
            else:
                continue
            raise error_for(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name}: {detail}")

    def _effective(self, configs: dict[str, str]) -> TopicConfig:
        try:
            return self._context.node_config().topic.override(configs)
        except ConfigError as error:
            raise error_for(ErrorCode.INVALID_CONFIG, str(error)) from error

    def _new_id(self) -> bytes:
        while True:
            topic_id = self._context.chance.randbytes(_ID_BYTES)
            # Kafka reserves ids that are zero except for their last bytes, such as the id of the
            # metadata topic.
            if any(topic_id[:8]) and topic_id not in self._context.metadata.topics:
                return topic_id

    # ---- deletion ----

    def delete(
        self, request: DeleteTopicsRequest, version: int, _: int
    ) -> Decision[DeleteTopicsResponse]:
        """Delete topics, with all their records."""
        asked = request.topics
        if version < TOPICS_BY_STATE_VERSION:
            asked = [DeleteTopicState(name=name) for name in request.topic_names]
        gone: dict[bytes, MetadataRecord] = {}
        responses = [self._deleted(each, gone) for each in asked]
        return respond(DeleteTopicsResponse(responses=responses), gone.values())

    def _deleted(
        self, asked: DeleteTopicState, gone: dict[bytes, MetadataRecord]
    ) -> DeletableTopicResult:
        try:
            topic = self._find(asked)
            self._check_not_internal(topic.name)
            self._check_not_mirror(topic, "deleted")
            # The request may name a topic twice, by its name and by its id. A second record would
            # contradict the first one at the replay.
            if topic.topic_id in gone:
                raise UnknownTopicOrPartition(f"there is no topic {topic.name}")
        except LogError as error:
            return DeletableTopicResult(
                name=asked.name,
                topic_id=asked.topic_id,
                error_code=error.code,
                error_message=str(error),
            )
        gone[topic.topic_id] = RemoveTopicRecord(topic_id=topic.topic_id)
        return DeletableTopicResult(name=topic.name, topic_id=topic.topic_id)

    def _find(self, asked: DeleteTopicState) -> TopicRegistration:
        metadata = self._context.metadata
        if (asked.name is None) == (asked.topic_id == ZERO_UUID):
            given = "neither a name nor an id" if asked.name is None else "a name and an id"
            raise error_for(
                ErrorCode.INVALID_REQUEST, f"a topic to delete has {given}: give one of them"
            )
        if asked.name is not None:
            topic = metadata.topic(asked.name)
            if topic is None:
                raise UnknownTopicOrPartition(f"there is no topic {asked.name}")
            return topic
        found = metadata.topics.get(asked.topic_id)
        if found is None:
            raise error_for(
                ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic {id_text(asked.topic_id)}"
            )
        return found

    def _check_not_internal(self, name: str) -> None:
        if name in self._context.internal_topics:
            raise error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is an internal topic")

    def _check_not_mirror(self, topic: TopicRegistration, what: str) -> None:
        """Check that a topic is not one that its link would make anew, or let differ."""
        mirror = self._context.metadata.mirrors.get(topic.topic_id)
        if mirror is not None and (mirror.copies or mirror.state is MirrorState.PAUSED):
            raise error_for(
                ErrorCode.POLICY_VIOLATION,
                f"{topic.name} mirrors {mirror.source_topic} of another cluster and can't be"
                f" {what} here: take it from its link first (streamlog mirror promote LINK --now"
                f" --topics {topic.name})",
            )

    # ---- adding partitions ----

    def add_partitions(
        self, request: CreatePartitionsRequest, _: int, __: int
    ) -> Decision[CreatePartitionsResponse]:
        """Add partitions to topics; with `validate_only`, only check the request."""
        counts = Counter(topic.name for topic in request.topics)
        records: list[MetadataRecord] = []
        results = []
        for topic in request.topics:
            result = CreatePartitionsTopicResult(name=topic.name)
            try:
                _check_once(topic.name, counts)
                self._check_grows(topic.name)
                added = list(self.added(topic))
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            else:
                records += () if request.validate_only else added
            results.append(result)
        return respond(CreatePartitionsResponse(results=results), records)

    def _check_grows(self, name: str) -> None:
        topic = self._context.metadata.topic(name)
        if topic is not None:
            self._check_not_mirror(topic, "given more partitions")

    def added(self, asked: CreatePartitionsTopic) -> Iterator[MetadataRecord]:
        """Yield the records of a topic's new partitions.

        Raises:
            LogError: they can't be added.
        """
        topic = self._context.metadata.topic(asked.name)
        if topic is None:
            raise UnknownTopicOrPartition(f"there is no topic {asked.name!r}")
        self._check_not_internal(asked.name)
        now = len(topic.partitions)
        if not now < asked.count <= PARTITIONS_MAX:
            raise error_for(
                ErrorCode.INVALID_PARTITIONS,
                f"the number of partitions of {asked.name} can't change from {now} to"
                f" {asked.count}: it can only grow, to at most {PARTITIONS_MAX}",
            )
        # New partitions get as many replicas as partition 0 has, without those that a
        # reassignment adds.
        copies = topic.partitions[0].replication_factor
        if asked.assignments is None:
            assigned = self._placed_after(topic, range(now, asked.count), copies)
        else:
            assigned = [tuple(each.broker_ids) for each in asked.assignments]
            if len(assigned) != asked.count - now:
                raise error_for(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"{asked.name}: the number of new partitions is {asked.count - now}, that of"
                    f" their assignments {len(assigned)}",
                )
            self._check_assigned(asked.name, assigned, copies=copies)
        config = self._context.decisive_config(topic.name)
        # 1. `orders` and its mirror, which is promoted, have one partition. 2. Both sides add
        # a second one, which gets records. 3. If both began with epoch 0, a fail back would take
        # the records of one for those of the other.
        mirror = self._context.metadata.mirrors.get(topic.topic_id)
        epoch = 0 if mirror is None or mirror.is_mirror else mirror.eras[-1].leader_epoch
        yield from self._partitions(topic.topic_id, assigned, config, first=now, epoch=epoch)

    def _placed_after(
        self, topic: TopicRegistration, numbers: range, copies: int
    ) -> list[Replicas]:
        """Return the replicas of added partitions, chosen as if at the topic's creation."""
        # Partition 0 shows where the topic began in the row, unless its first broker is gone.
        row, racks = self._row(topic.name, copies)
        first = topic.partitions[0].replicas[0]
        start = row.index(first) if first in row else self._context.chance.randrange(len(row))
        return assign_replicas(row, racks, numbers, copies, start)


def is_topic_name(name: str) -> bool:
    """Return whether Kafka's rule allows this topic name."""
    return name not in (".", "..") and TOPIC_NAME.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check a topic name against Kafka's rule.

    Raises:
        LogError: INVALID_TOPIC_EXCEPTION: the name is not allowed.
    """
    if not is_topic_name(name):
        raise error_for(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name[:300]!r} can't be the name of a topic: use 1 to 249 of the characters a-z, "
            "A-Z, 0-9, '.', '_' and '-'",
        )


def _check_not_reserved(name: str) -> None:
    if name.startswith(MIRRORED_LOGS):
        raise error_for(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name}: names that begin with {MIRRORED_LOGS} are for links: choose another one",
        )


def _check_once(name: str, counts: Mapping[str, int]) -> None:
    if counts[name] > 1:
        detail = f"the request names topic {name} {counts[name]} times"
        raise error_for(ErrorCode.INVALID_REQUEST, detail)


def _texts(topic: CreatableTopic) -> dict[str, str]:
    configs = {}
    for config in topic.configs:
        if config.value is None:
            raise error_for(ErrorCode.INVALID_CONFIG, f"{topic.name}: {config.name} has no value")
        configs[config.name] = config.value
    return configs
