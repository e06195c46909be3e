"""Descriptions of a cluster, and the search for problems in them.

Descriptions are values. `find_problems` compares the reports of all brokers with the metadata, and
finds partitions without a leader, replicas that lag, and voters that do not answer. It does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from streamlog.record import TopicPartition


class BrokerDescription(msgspec.Struct, frozen=True):
    """A broker, with its address for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class ClusterDescription(msgspec.Struct, frozen=True):
    """A cluster's id, controller and live brokers."""

    cluster_id: str
    controller: int
    """The id of the broker that acts as the controller; -1 while there is none."""
    brokers: tuple[BrokerDescription, ...]


class PartitionDescription(msgspec.Struct, frozen=True):
    """A partition's leader and replicas, as the controller knows them."""

    topic: str
    partition: int
    leader: int
    """The id of the leader; -1 while there is none."""
    leader_epoch: int
    replicas: tuple[int, ...]
    """The preferred leader first."""
    in_sync: tuple[int, ...]
    offline: tuple[int, ...]


class QuorumReplica(msgspec.Struct, frozen=True):
    """A node's progress in the metadata log, as the quorum's leader knows it."""

    node_id: int
    end_offset: int
    """The offset up to which the node has the log; -1 until its first fetch."""
    caught_up_ms: int | None
    """When the node last had the whole log, in ms since 1970 by the leader's clock; None if
    unknown."""
    fetched_ms: int | None = None
    """When the node last fetched, in ms since 1970 by the leader's clock; None if unknown."""
    is_rejoining: bool = False
    """Whether the node is a voter that does not vote yet: its disk was replaced or damaged."""


class QuorumDescription(msgspec.Struct, frozen=True):
    """The quorum of controllers."""

    leader: int
    """The active controller."""
    epoch: int
    high_watermark: int
    """Entries before this offset are on the disks of a majority of the voters."""
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    """Brokers that fetch the metadata log and do not vote."""

    def lag(self, replica: QuorumReplica) -> int:
        """Return the number of entries in the leader's log that a node lacks."""
        ends = [each.end_offset for each in self.voters if each.node_id == self.leader]
        # Without the leader's own end, only the committed entries are known.
        return max(0, max(ends, default=self.high_watermark) - max(replica.end_offset, 0))


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's registration in the metadata of the cluster."""

    epoch: int
    is_fenced: bool
    directories: tuple[bytes, ...]


class ReplicaDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A replica, as reported by its own broker."""

    leader_epoch: int
    in_sync: tuple[int, ...] | None
    """The in-sync replicas if this one leads; None if it follows."""
    high_watermark: int
    end_offset: int
    """The offset after the last durable record."""


class NodeDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A broker process, by its own report."""

    node_id: int
    epoch: int
    """The epoch of the process's registration; -1 while it has none."""
    directory: bytes
    applied_offset: int
    """The offset after the last metadata entry that the process has applied."""
    quorum_leader: int
    quorum_epoch: int
    is_rejoining: bool = False
    """Whether it is a voter that does not vote yet."""
    strays: int = 0
    """Folders that were set aside because the cluster does not know their topics."""
    registrations: Mapping[int, Registration] = msgspec.field(default_factory=dict)
    replicas: Mapping[TopicPartition, ReplicaDescription] = msgspec.field(default_factory=dict)
    version: str | None = None
    """The release of streamlog that it runs; None for releases that don't say."""
    interpreted: int | None = None
    """The number of its hot modules that run without compilation."""
    connections: int | None = None
    """The number of connections that its limit of open files allows."""
    clock_ahead_ms: int | None = None
    """How far its clock is ahead of this machine's."""
    clock_error_ms: int = 0
    """The most by which `clock_ahead_ms` may be wrong: half of the round trip."""


class ClusterReports(msgspec.Struct, frozen=True):
    """The brokers' reports and failures, by node id."""

    reports: Mapping[int, NodeDescription] = msgspec.field(default_factory=dict)
    silent: Mapping[int, str] = msgspec.field(default_factory=dict)
    """Brokers that gave no answer, and why. Brokers that do not support the report, such as other
    vendors', are in neither mapping."""


NO_NODE = -1


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The answers that `find_problems` compares, in the order of the requests.

    Because the reports come in two rounds, each later answer can be checked against an earlier one:
    an offset that was committed in the first round must be on every replica in the second.
    """

    first: ClusterReports
    quorum: QuorumDescription | None
    """None if the cluster has no quorum, or does not describe it."""
    partitions: Sequence[PartitionDescription]
    second: ClusterReports
    quorum_after: QuorumDescription | None = None


class EvidenceRules(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence that is required; only tests that plant a fault switch parts off."""

    wants_reports: bool = True
    """Whether every broker must report for itself; the controller's view alone may be outdated."""


CORRECT = EvidenceRules()


def find_problems(evidence: Evidence, rules: EvidenceRules = CORRECT) -> list[str]:
    """Return the reasons why the cluster is not proved healthy, one line each; none if it is."""
    found = list(_partitions(evidence.partitions))
    found += _quorum(evidence)
    if rules.wants_reports:
        found += [f"broker {each} gave no report: {why}" for each, why in _silent(evidence)]
        found += _processes(evidence)
        found += _replicas(evidence)
    return found


def _partitions(partitions: Iterable[PartitionDescription]) -> Iterator[str]:
    """Yield missing leaders and replicas that are not in sync, as the controller knows them."""
    for each in partitions:
        name = f"{each.topic}-{each.partition}"
        if each.leader == NO_NODE:
            yield f"{name} has no leader{_waits_for(each)}"
        elif {*each.in_sync} != {*each.replicas}:
            missing = sorted({*each.replicas} - {*each.in_sync})
            yield f"{name}: replicas on brokers {missing} are not in sync"


def _waits_for(partition: PartitionDescription) -> str:
    """Return which broker or disk must return before a partition can have a leader again."""
    # Only a replica of the last ISR has all committed records, so only one of them can lead without
    # loss.
    if partition.in_sync:
        last = " or ".join(map(str, partition.in_sync))
        return f": it waits for broker {last}, which was last in sync"
    name = f"{partition.topic}-{partition.partition}"
    return (
        ": the last complete replica was on a disk that was replaced or damaged; put that disk"
        " back, or accept the loss of the records that no other replica has, and then run"
        f" `streamlog cluster elect --unclean {name}`"
    )


def _silent(evidence: Evidence) -> list[tuple[int, str]]:
    return sorted({**evidence.first.silent, **evidence.second.silent}.items())


def _quorum(evidence: Evidence) -> Iterator[str]:
    """Yield voters that do not vote, lack committed entries, or may be dead."""
    quorum, after = evidence.quorum, evidence.quorum_after
    if quorum is None or after is None:
        return
    # The second answer is checked against the first: each voter must have the entries that were
    # committed then, and must have fetched since.
    if after.leader == NO_NODE:
        yield "no node leads the quorum"
    if (after.leader, after.epoch) != (quorum.leader, quorum.epoch):
        yield f"the quorum has just elected node {after.leader}"
    silent = {*silent_voters(quorum, after)}
    for each in after.voters:
        if each.is_rejoining:
            yield f"voter {each.node_id} is rejoining the quorum and does not vote yet"
        elif each.end_offset < quorum.high_watermark:
            yield (
                f"voter {each.node_id} has the metadata log up to offset"
                f" {max(each.end_offset, 0)}, but it is committed up to {quorum.high_watermark}"
            )
        elif each.node_id in silent:
            yield f"voter {each.node_id} has not fetched since the quorum was first looked at"


def silent_voters(before: QuorumDescription, after: QuorumDescription) -> list[int]:
    """Return the voters that have not fetched between two descriptions: they may be dead.

    The offset of an old fetch does not prove that the voter's present disk has the log.
    """
    known = {each.node_id: each.fetched_ms for each in before.voters}
    if not any(each.fetched_ms for each in after.voters):
        return []  # There is one voter only, or the release does not report fetch times.
    return [
        each.node_id
        for each in after.voters
        if each.node_id != after.leader and each.fetched_ms == known.get(each.node_id)
    ]


def _processes(evidence: Evidence) -> Iterator[str]:
    """Yield broker processes that differ from those that the metadata names."""
    registrations = _registrations(evidence)
    for node_id, report in sorted(evidence.second.reports.items()):
        registered = registrations.get(node_id)
        yield from _process(report, registered)
        quorum = evidence.quorum
        if quorum is None:
            continue
        if report.applied_offset < quorum.high_watermark:
            yield (
                f"broker {node_id} has applied the metadata log up to offset"
                f" {report.applied_offset}, but it is committed up to {quorum.high_watermark}"
            )
        if (report.quorum_leader, report.quorum_epoch) != (quorum.leader, quorum.epoch):
            yield (
                f"broker {node_id} knows node {report.quorum_leader} in epoch"
                f" {report.quorum_epoch} as the quorum's leader, but it is node {quorum.leader} in"
                f" epoch {quorum.epoch}"
            )


def _process(report: NodeDescription, registered: Registration | None) -> Iterator[str]:
    name = f"broker {report.node_id}"
    if registered is None or report.epoch == NO_NODE:
        yield f"{name} runs and is not registered yet"
    elif report.epoch != registered.epoch:
        yield f"{name} runs as another process than the one that is registered"
    elif report.directory not in registered.directories:
        yield f"{name} runs on another log directory than the one that is registered"
    elif registered.is_fenced:
        yield f"{name} is fenced"
    if report.is_rejoining:
        yield f"{name} is rejoining the quorum and does not vote yet"
    if report.strays:
        folders = "1 folder" if report.strays == 1 else f"{report.strays} folders"
        yield (
            f"{name} has set aside {folders} (*-stray) with partitions of topics that the cluster"
            " does not know: see its log"
        )


def _registrations(evidence: Evidence) -> dict[int, Registration]:
    """Return the registrations from the broker that has applied most of the metadata."""
    reports = evidence.second.reports.values()
    freshest = max(reports, key=lambda each: each.applied_offset, default=None)
    return {} if freshest is None else {**freshest.registrations}


def _replicas(evidence: Evidence) -> Iterator[str]:
    """Yield replicas that lack committed records."""
    first, second = evidence.first.reports, evidence.second.reports
    for each in evidence.partitions:
        partition = TopicPartition(each.topic, each.partition)
        name = f"{each.topic}-{each.partition}"
        if each.leader in second:
            yield from _led(name, each, second[each.leader])
        # 1. In the first round, the leader reports that records up to 10 are committed.
        # 2. In the second round, a follower's log ends at 8: it lacks records 8 and 9.
        # If both came from one round, a follower could be behind a commit of that very moment.
        known = first[each.leader].replicas.get(partition) if each.leader in first else None
        committed = 0 if known is None or known.in_sync is None else known.high_watermark
        for node_id in each.replicas:
            if node_id not in second:
                continue  # Another line reports that the broker is silent or missing.
            replica = second[node_id].replicas.get(partition)
            if replica is None:
                yield f"{name}: broker {node_id} has no replica"
            elif replica.end_offset < committed:
                yield (
                    f"{name}: the replica on broker {node_id} ends at offset"
                    f" {replica.end_offset}, but records are committed up to {committed}"
                )


def _led(name: str, partition: PartitionDescription, leader: NodeDescription) -> Iterator[str]:
    """Yield problems in the leader's own report of a partition."""
    own = leader.replicas.get(TopicPartition(partition.topic, partition.partition))
    if own is None or own.in_sync is None or own.leader_epoch != partition.leader_epoch:
        yield f"{name}: broker {leader.node_id} does not lead epoch {partition.leader_epoch}"
    elif {*own.in_sync} != {*partition.replicas}:
        missing = sorted({*partition.replicas} - {*own.in_sync})
        yield f"{name}: its leader reports replicas on brokers {missing} as not in sync"
