"""BrokerRegistration, PartitionRegistration: a broker and a partition in the metadata image.

Frozen values, as Kafka's classes of these names: a change returns a new one. Each can be written as
one record, so that a snapshot of the metadata is a list of records.

Rules of this module: every change record of a partition raises its partition epoch by one. Every
record that names a leader, even the present one, raises its leader epoch by one.
"""

from __future__ import annotations

from typing import Self

import msgspec

from streamlog.protocol.messages.metadata_log import (
    NO_CHANGE,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from streamlog.replace import replace

NO_LEADER = -1
UNKNOWN_DIRECTORY = bytes(16)
"""The directory id of a replica from before directories were recorded."""
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""The directory id of a replica that was never in sync (Kafka's `DirectoryId.UNASSIGNED`)."""
OFFLINE_DIRECTORY = bytes(15) + b"\x03"
"""The directory id of a replica whose disk has failed; its broker has not started since. Kafka has
the ids up to 2 for other states."""
OFFSET_OF_RECORD = -1
"""The broker epoch in a registration record that stands for the record's own offset, which the
controller does not know when it decides. So broker epochs grow with every registration."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The host and the port of a broker's listener."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, as its last process registered it."""

    broker_id: int
    epoch: int
    incarnation_id: bytes
    """The id of the process."""
    endpoints: tuple[Endpoint, ...] = ()
    features: tuple[tuple[str, int, int], ...] = ()
    """Name, lowest and highest level of each feature that the broker supports."""
    rack: str | None = None
    is_fenced: bool = True
    is_shutting_down: bool = False
    directories: tuple[bytes, ...] = ()
    """The ids of its log directories (KIP-858): another directory lacks acknowledged records."""
    life: bytes = UNKNOWN_DIRECTORY
    """The id that this process wrote into the directory at its start; all zero if not known."""

    @property
    def is_active(self) -> bool:
        """Whether it can lead, and be in sync."""
        return not self.is_fenced and not self.is_shutting_down

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the endpoint of a listener; None if the broker has no such listener."""
        return next((each for each in self.endpoints if each.name == listener), None)

    def changed(self, record: BrokerRegistrationChangeRecord) -> Self:
        """Return the registration after a change record."""
        return replace(
            self,
            # 1 fences, -1 unfences, 0 changes nothing.
            is_fenced=self.is_fenced if not record.fenced else record.fenced > 0,
            # Only a new registration ends a shutdown.
            is_shutting_down=self.is_shutting_down or record.in_controlled_shutdown > 0,
            directories=tuple(record.log_dirs) or self.directories,
        )

    def record(self) -> RegisterBrokerRecord:
        """Return the whole registration as one record, for a snapshot."""
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
        """Return the registration in the record at `offset`."""
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


class PartitionRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """A partition's replicas, in-sync replicas, leader and epochs."""

    replicas: tuple[int, ...]
    """The preferred leader first."""
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    directories: tuple[bytes, ...] = ()
    """Per replica, the log directory in which it was last in sync; `UNASSIGNED_DIRECTORY` if it
    never was, `UNKNOWN_DIRECTORY` if that is not known."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    """The eligible leader replicas: out of sync, but with all committed records (KIP-966)."""
    last_unclean_epoch: int = -1
    """The last leader epoch that began with an unclean election; -1 for none."""

    @property
    def replication_factor(self) -> int:
        """The number of replicas, without those that are still being added."""
        return len(self.replicas) - len(self.adding)

    @property
    def is_reassigning(self) -> bool:
        """Whether the partition is being reassigned to other brokers (KIP-455)."""
        return bool(self.adding or self.removing)

    def needs(self, broker_id: int) -> bool:
        """Return whether the partition depends on a broker.

        The broker leads it and is alone in sync, or it could lead a partition without a leader.
        """
        if self.leader == NO_LEADER:
            return broker_id in (*self.isr, *self.elr)
        return self.leader == broker_id and {*self.isr} <= {broker_id}

    def directory(self, broker_id: int) -> bytes | None:
        """Return the directory in which a broker's replica was last in sync; None if unknown."""
        # There are no directories in records from before they were recorded.
        for replica, directory in zip(self.replicas, self.directories, strict=False):
            if replica == broker_id and any(directory):
                return directory
        return None

    def is_offline(self, broker_id: int) -> bool:
        """Return whether the disk of a broker's replica has failed."""
        return self.directory(broker_id) == OFFLINE_DIRECTORY

    def placed(self, broker_id: int, directory: bytes) -> Self:
        """Return the partition with a broker's replica in another directory."""
        known = dict(zip(self.replicas, self.directories, strict=False)) | {broker_id: directory}
        return replace(
            self,
            directories=tuple(known.get(each, UNKNOWN_DIRECTORY) for each in self.replicas),
        )

    def changed(self, record: PartitionChangeRecord) -> Self:
        """Return the partition after a change record, with its epochs raised."""
        has_leader = record.leader != NO_CHANGE
        # Even the present leader gets a new epoch if the record names it, see the head.
        leader_epoch = self.leader_epoch
        if has_leader:
            leader_epoch = max(leader_epoch + 1, record.least_leader_epoch)

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
        """Return the whole partition as one record, for a snapshot."""
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
        """Return the partition in a record."""
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
