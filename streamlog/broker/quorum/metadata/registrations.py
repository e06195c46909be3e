"""BrokerRegistration, PartitionRegistration: what the metadata says of a broker, a partition.

Values: a change makes a new one. Each is made of records and can be written as one, so that a
snapshot of the metadata is a list of records like any other (after Kafka's classes of the same
names). The rules of the epochs are here: whatever changes in a partition adds one to its
partition epoch, and whatever names a leader, be it the same one, one to its leader epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from streamlog.protocol.messages.metadata_log import (
    NO_CHANGE,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)

NO_LEADER = -1
UNKNOWN_DIRECTORY = bytes(16)
"""Of a replica from before directories were recorded."""
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""Of a replica that has never been in sync (Kafka's `DirectoryId.UNASSIGNED`)."""
OFFSET_OF_RECORD = -1
"""As the epoch of a broker: the offset at which its registration comes to lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a broker is reached under the name of one of its listeners."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker as its last process has registered it."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    """Of the process."""
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    """Names, with the lowest and highest level that the broker knows."""
    rack: str | None = None
    is_fenced: bool = True
    is_shutting_down: bool = False
    directories: tuple[bytes, ...] = ()
    """Ids of its log directories: another one has none of the records that were acknowledged."""
    life: bytes = UNKNOWN_DIRECTORY
    """Of the directory: an id that it got when this process started; all zero if not told."""

    @property
    def is_active(self) -> bool:
        """Whether it can lead, and be in sync."""
        return not self.is_fenced and not self.is_shutting_down

    def endpoint(self, listener: str) -> Endpoint | None:
        """Where it is reached under a listener's name."""
        return next((each for each in self.endpoints if each.name == listener), None)

    def changed(self, record: BrokerRegistrationChangeRecord) -> Self:
        """After a change."""
        return replace(
            self,
            is_fenced=self.is_fenced if not record.fenced else record.fenced > 0,
            is_shutting_down=self.is_shutting_down or record.in_controlled_shutdown > 0,
            directories=tuple(record.log_dirs) or self.directories,
        )

    def record(self) -> RegisterBrokerRecord:
        """All of it."""
        return RegisterBrokerRecord(
            broker_id=self.broker_id,
            incarnation_id=self.incarnation_id,
            broker_epoch=self.epoch,
            end_points=[
                BrokerEndpoint(
                    name=each.name,
                    host=each.host,
                    port=each.port,
                    security_protocol=each.security_protocol,
                )
                for each in self.endpoints
            ],
            features=[
                BrokerFeature(name=name, min_supported_version=least, max_supported_version=most)
                for name, least, most in self.features
            ],
            rack=self.rack,
            fenced=self.is_fenced,
            in_controlled_shutdown=self.is_shutting_down,
            log_dirs=list(self.directories),
            directory_life=self.life,
        )

    @classmethod
    def of_record(cls, record: RegisterBrokerRecord, offset: int) -> Self:
        """As registered by the record at `offset`."""
        epoch = record.broker_epoch
        return cls(
            broker_id=record.broker_id,
            epoch=offset if epoch == OFFSET_OF_RECORD else epoch,
            incarnation_id=record.incarnation_id,
            endpoints=tuple(
                Endpoint(
                    name=each.name,
                    host=each.host,
                    port=each.port,
                    security_protocol=each.security_protocol,
                )
                for each in record.end_points
            ),
            features=tuple(
                (each.name, each.min_supported_version, each.max_supported_version)
                for each in record.features
            ),
            rack=record.rack,
            is_fenced=record.fenced,
            is_shutting_down=record.in_controlled_shutdown,
            directories=tuple(record.log_dirs),
            life=record.directory_life,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """Who holds a partition, who of them is in sync and who leads."""

    replicas: tuple[int, ...]
    """The preferred leader first."""
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    """Of each replica, the log directory in which it was last in sync; `UNASSIGNED_DIRECTORY` if
    it never was, `UNKNOWN_DIRECTORY` if that is not known."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """Not in sync, but of everything that was acknowledged they hold all (KIP-966)."""
    last_unclean_epoch: int = -1
    """The last leader epoch that somebody began who may have lacked acknowledged records."""

    @property
    def replication_factor(self) -> int:
        """How many replicas it has, those not counted that are still being added."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_reassigning(self) -> bool:
        """Whether it is on its way to other brokers."""
        return bool(self.adding or self.removing)

    def needs(self, broker_id: int) -> bool:
        """Whether a broker leads it and is alone in sync, or could lead it while nobody does."""
        if self.leader == NO_LEADER:
            return broker_id in (*self.isr, *self.elr)
        return self.leader == broker_id and {*self.isr} <= {broker_id}

    def directory(self, broker_id: int) -> bytes | None:
        """Where its replica on a broker was last in sync; None if it is not known."""
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id and any(directory):
                return directory
        return None

    def changed(self, record: PartitionChangeRecord) -> Self:
        """After a change."""
        has_leader = record.leader != NO_CHANGE
        leader_epoch = self.leader_epoch + has_leader

        def new(after: list[int] | None, before: tuple[int, ...]) -> tuple[int, ...]:
            return before if after is None else tuple(after)

        return replace(
            self,
            replicas=new(record.replicas, self.replicas),
            isr=new(record.isr, self.isr),
            leader=record.leader if has_leader else self.leader,
            leader_epoch=leader_epoch,
            partition_epoch=self.partition_epoch + 1,
            directories=(
                self.directories if record.directories is None else tuple(record.directories)
            ),
            adding=new(record.adding_replicas, self.adding),
            removing=new(record.removing_replicas, self.removing),
            elr=new(record.eligible_leader_replicas, self.elr),
            last_unclean_epoch=leader_epoch if record.is_unclean else self.last_unclean_epoch,
        )

    def record(self, topic_id: bytes, partition: int) -> PartitionRecord:
        """All of it."""
        return PartitionRecord(
            partition_id=partition,
            topic_id=topic_id,
            replicas=list(self.replicas),
            isr=list(self.isr),
            removing_replicas=list(self.removing),
            adding_replicas=list(self.adding),
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=list(self.directories),
            eligible_leader_replicas=list(self.elr) or None,
            last_unclean_epoch=self.last_unclean_epoch,
        )

    @classmethod
    def of_record(cls, record: PartitionRecord) -> Self:
        """As a record has it."""
        return cls(
            replicas=tuple(record.replicas),
            isr=tuple(record.isr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=tuple(record.directories),
            adding=tuple(record.adding_replicas),
            removing=tuple(record.removing_replicas),
            elr=tuple(record.eligible_leader_replicas or ()),
            last_unclean_epoch=record.last_unclean_epoch,
        )
