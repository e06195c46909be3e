"""A controller whose decisions are committed at once, for tests of its answers and records."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.cluster import ClusterConfig
from streamlog.broker.quorum.controller.cluster_controller import Controller
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision
from streamlog.broker.quorum.controller.leader_elections import CORRECT, ElectionRules
from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
from streamlog.broker.quorum.metadata.metadata_records import (
    MetadataRecord,
    decode_record,
    encode_record,
)
from streamlog.broker.quorum.metadata.registrations import PartitionRegistration
from streamlog.protocol.messages.broker_registration import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    BrokerState,
    DamagedPartition,
    DamagedTopic,
    ProposedPartition,
    ProposedTopic,
    RegisteredListener,
)
from streamlog.protocol.messages.partitions_and_replicas import (
    ElectedTopicPartitions,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from streamlog.protocol.schema import Message

CLUSTER_ID = "cluster"
CONTROLLER = 100
"""A node that is not a broker."""
NEWEST = 99
INTERNAL = "__consumer_offsets"

R = TypeVar("R", bound=Message)


class Deciding:
    """A controller, its log and its clock."""

    def __init__(
        self,
        *,
        cluster: ClusterConfig | None = None,
        config: BrokerConfig | None = None,
        node_id: int = CONTROLLER,
        seed: int = 0,
        rules: ElectionRules = CORRECT,
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self.now_ms = 1_000_000
        self.cluster_id = cluster_id
        self.log: list[bytes] = []
        self.incarnations: dict[int, int] = {}
        self.realm = ControllerContext(
            metadata=ClusterMetadata(),
            cluster_id=cluster_id,
            node_id=node_id,
            chance=Random(seed),
            config=config or BrokerConfig(),
            cluster=cluster or ClusterConfig(),
            internal_topics=frozenset({INTERNAL}),
            rules=rules,
        )
        self.controller = Controller(self.realm)
        self.commit(self.controller.on_active(self.now_ms))

    @property
    def metadata(self) -> ClusterMetadata:
        return self.realm.metadata

    def commit(self, decision: Decision[Message] | None) -> list[MetadataRecord]:
        """Append the decision's records to the log; return them as decoded from it."""
        records = []
        for record in () if decision is None else decision.records:
            value = encode_record(record)
            records.append(decode_record(value))
            self.metadata.replay(records[-1], len(self.log))
            self.log.append(value)
        return records

    def ask(self, request: Message, response: type[R], version: int = NEWEST) -> R:
        decision = self.controller.decide(request, version, self.now_ms)
        self.commit(decision)
        assert decision.answer is not None
        answer = decision.answer()
        assert isinstance(answer, response)
        return answer

    def tick(self, ms: int = 0) -> list[MetadataRecord]:
        """Let `ms` pass and take all due decisions; return their records."""
        self.now_ms += ms
        records = []
        while (decision := self.controller.on_tick(self.now_ms)) is not None:
            records += self.commit(decision)
        return records

    def replayed(self) -> ClusterMetadata:
        """Return the metadata of a node that replays the whole log."""
        image = ClusterMetadata()
        for offset, value in enumerate(self.log):
            image.replay(decode_record(value), offset)
        return image

    def take_over(self) -> None:
        """Make another node the active controller."""
        self.realm.metadata = self.replayed()
        self.controller = Controller(self.realm)
        self.commit(self.controller.on_active(self.now_ms))

    # ---- brokers ----

    def register(
        self,
        broker: int,
        *,
        directory: int = 0,
        previous_epoch: int = -1,
        rack: str | None = None,
        damaged: dict[bytes, list[int]] | None = None,
        cluster_id: str | None = None,
        again: bool = False,
        lives: Sequence[int] = (),
    ) -> BrokerRegistrationResponse:
        """Register a new process of a broker, or with `again` its last process once more."""
        self.incarnations[broker] = self.incarnations.get(broker, 0) + (not again)
        request = BrokerRegistrationRequest(
            broker_id=broker,
            cluster_id=self.cluster_id if cluster_id is None else cluster_id,
            incarnation_id=bytes([broker, self.incarnations[broker], *bytes(14)]),
            listeners=[RegisteredListener(name="PLAINTEXT", host=f"b{broker}", port=9092)],
            rack=rack,
            log_dirs=[directory_id(broker, directory)],
            previous_broker_epoch=previous_epoch,
            damaged=self._damaged(damaged, None),
            directory_lives=[each.to_bytes(16) for each in lives],
        )
        return self.ask(request, BrokerRegistrationResponse)

    def heartbeat(
        self,
        broker: int,
        *,
        offset: int | None = None,
        epoch: int | None = None,
        damaged: dict[bytes, list[int]] | None = None,
        damaged_in: int | None = None,
        offline: dict[bytes, list[int]] | None = None,
        **wants: bool,
    ) -> BrokerHeartbeatResponse:
        """Send a heartbeat; by default the broker has applied all metadata, so it knows the leader
        epochs."""
        known = self.metadata.brokers.get(broker)
        request = BrokerHeartbeatRequest(
            broker_id=broker,
            broker_epoch=(-1 if known is None else known.epoch) if epoch is None else epoch,
            current_metadata_offset=self.metadata.offset if offset is None else offset,
            damaged=self._damaged(damaged, damaged_in),
            offline=self._damaged(offline, None),
            **wants,
        )
        return self.ask(request, BrokerHeartbeatResponse)

    def start(self, *brokers: int, **said: Any) -> None:
        """Register brokers and unfence them."""
        for broker in brokers:
            assert self.register(broker, **said).error_code == 0
            assert not self.heartbeat(broker).is_fenced

    def silence(self, *brokers: int) -> None:
        """Let a session timeout pass in which all live brokers but these send heartbeats."""
        others = self.realm.active() - {*brokers}
        for _ in range(2):
            self.now_ms += self.realm.cluster.session_timeout_ms // 2 + 1
            for broker in sorted(others):
                self.heartbeat(broker)
        self.tick()

    # ---- topics ----

    def create(
        self,
        name: str = "t",
        *,
        partitions: int = 1,
        replicas: list[list[int]] | None = None,
        copies: int = -1,
        configs: dict[str, str] | None = None,
    ) -> bytes:
        """Create a topic; return its id."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions if replicas is None else -1,
            replication_factor=copies,
            assignments=[
                CreatableReplicaAssignment(partition_index=number, broker_ids=brokers)
                for number, brokers in enumerate(replicas or ())
            ],
            configs=[
                CreatableTopicConfig(name=key, value=value)
                for key, value in (configs or {}).items()
            ],
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic]), CreateTopicsResponse)
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message
        return answer.topics[0].topic_id

    def topic_id(self, name: str) -> bytes:
        topic = self.metadata.topic(name)
        assert topic is not None
        return topic.topic_id

    def partition(self, name: str = "t", number: int = 0) -> PartitionRegistration:
        topic = self.metadata.topic(name)
        assert topic is not None
        return topic.partitions[number]

    def propose(self, isr: list[int], name: str = "t", number: int = 0, **other: Any) -> int:
        """Propose an ISR as the leader, by default at the current epochs; return the error code."""
        topic = self.metadata.topic(name)
        assert topic is not None
        partition = topic.partitions[number]
        leader = other.get("leader", partition.leader)
        states = [
            BrokerState(broker_id=each, broker_epoch=self._epoch(each, other)) for each in isr
        ]
        proposed = ProposedPartition(
            partition_index=number,
            leader_epoch=other.get("leader_epoch", partition.leader_epoch),
            partition_epoch=other.get("partition_epoch", partition.partition_epoch),
            new_isr_with_epochs=states,
        )
        request = AlterPartitionRequest(
            broker_id=leader,
            broker_epoch=self._epoch(leader, {}),
            topics=[ProposedTopic(topic_id=topic.topic_id, partitions=[proposed])],
        )
        answer = self.ask(request, AlterPartitionResponse, version=3)
        assert answer.error_code == 0
        return answer.topics[0].partitions[0].error_code

    def elect_unclean(self, name: str = "t", number: int = 0) -> int:
        """Request an unclean election; return the error code."""
        request = ElectLeadersRequest(
            election_type=1,
            topic_partitions=[ElectedTopicPartitions(topic=name, partitions=[number])],
        )
        answer = self.ask(request, ElectLeadersResponse)
        return answer.replica_election_results[0].partition_result[0].error_code

    def _damaged(
        self, by_topic: dict[bytes, list[int]] | None, epoch: int | None
    ) -> list[DamagedTopic]:
        def damaged(topic_id: bytes, number: int) -> DamagedPartition:
            known = self.metadata.topics[topic_id].partitions[number].leader_epoch
            return DamagedPartition(
                partition_index=number, leader_epoch=known if epoch is None else epoch
            )

        return [
            DamagedTopic(topic_id=topic_id, partitions=[damaged(topic_id, each) for each in own])
            for topic_id, own in (by_topic or {}).items()
        ]

    def _epoch(self, broker: int, other: dict[str, Any]) -> int:
        known = self.metadata.brokers.get(broker)
        said: dict[int, int] = other.get("epochs", {})
        return said.get(broker, -1 if known is None else known.epoch)


def directory_id(broker: int, directory: int) -> bytes:
    return bytes([broker, directory, 7, *bytes(13)])
