"""Elections: who is in sync and who leads, after something has happened to a partition.

One function, `change_of`, decides on all changes, so that what holds for them is said once:

- The last replica in sync stays it, dead or alive: it may have what nobody else has. Only one that
  has lost its records goes, and then the partition has no leader rather than a wrong one.
- A leader is in sync and lives; it stays if it can, else the first in the order of the replicas
  follows, which makes the first one of all the preferred leader.
- Where fewer than `min.insync.replicas` are in sync nothing is committed (the leader's rule R9), so
  who was in sync before that has everything that ever was: these are the *eligible leader
  replicas* (ELR, KIP-966). If nobody in sync can lead, one of them does, and nothing is lost.
- Where a replica leaves, the leader begins a new epoch: else what it has fetched would count for
  the empty one that follows it on the same broker, if a fetch of before is read late.
- Whoever else leads may lack acknowledged records. That is an unclean election, it happens only
  where the topic allows it or somebody orders it, and its epoch is remembered.
- The metadata names, for each replica, the log directory in which it was last in sync. A replica
  on another directory holds nothing of that; it leads only if no replica that may hold more is
  left, or if somebody orders an election while that one is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from streamlog.broker.quorum.metadata.registrations import (
    NO_LEADER,
    UNKNOWN_DIRECTORY,
    PartitionRegistration,
)
from streamlog.protocol.messages.metadata_log import NO_CHANGE, PartitionChangeRecord

_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionRules:
    """Which rules hold; all of them, but in tests of whether a simulation finds one missing."""

    keeps_last_in_sync: bool = True
    elects_in_sync: bool = True
    """And not just anybody who lives."""
    clears_elr: bool = True
    """When enough are in sync again, and records are committed that the eligible may lack."""
    loses_with_directory: bool = True
    """A replica whose log directory is another one is not in sync, even if it is the last."""
    raises_leader_epoch: bool = True
    """When a broker comes back with another process, its partitions have other leader epochs."""
    compares_partition_epoch: bool = True
    """AlterPartition holds only if nothing has changed since who sent it has looked (CAS)."""
    compares_broker_epoch: bool = True
    """A replica is in sync only as the process that the leader has seen (KIP-903)."""
    doubts_killed: bool = True
    """A process that was killed may lack what it has said, where syncs are not waited for."""
    voids_refused: bool = True
    """A proposal that is refused for its replicas is not taken up later, by a late copy."""
    forgets_leavers: bool = True
    """What a replica has fetched does not count for one on the same broker that follows it."""
    forgets_damaged: bool = True
    """What a replica has fetched does not count for it any more once it has lost records."""
    compares_damage_epoch: bool = True
    """What is said of damage holds in the leader epoch that it is said for."""
    hears_damage_again: bool = True
    """What a process says of damage counts, though it says with it what is known already."""
    compares_lives: bool = True
    """A log directory that was put back from before its last registration has lost records."""
    spares_empty: bool = True
    """An unclean election passes over a replaced disk while another replica has its own disk."""


CORRECT = ElectionRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """By what is decided."""

    active: Collection[int]
    """Brokers that can lead."""
    min_insync: int
    allows_unclean: bool = False
    is_ordered: bool = False
    """Whether somebody orders an unclean election, and so knows who is away."""
    directories: Mapping[int, bytes] = field(default_factory=dict)
    """The log directory that each registered broker has."""
    rules: ElectionRules = CORRECT


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionWish:
    """What shall be other than it is."""

    isr: tuple[int, ...] | None = None
    """In sync, as its leader says."""
    gone: Collection[int] = _NOBODY
    """Out of sync, if anybody else is in."""
    doubtful: Collection[int] = _NOBODY
    """Gone, and perhaps without its newest records: not eligible either."""
    lost: Collection[int] = _NOBODY
    """Without records that they had: neither in sync nor eligible, whoever is left."""
    placement: PartitionRegistration | None = None
    """Replicas, their directories, and which are being added and removed, as in here."""
    prefers: bool = False
    """Whether the preferred leader takes over from one that could stay."""
    renews: bool = False
    """Whether a leader that stays begins a new epoch."""


NOTHING = PartitionWish()


@dataclass(slots=True)
class _Outcome:
    """How it shall be."""

    isr: list[int]
    elr: list[int]
    leader: int
    is_unclean: bool = field(default=False)


def change_of(
    before: PartitionRegistration, wish: PartitionWish, terms: Terms
) -> tuple[PartitionRegistration, PartitionChangeRecord | None]:
    """The placement that is meant, and what changes; None if nothing does.

    The record is without topic and partition: see `record_of`.
    """
    placed = before if wish.placement is None else wish.placement
    isr = _in_sync(before, wish, placed, terms.rules)
    elr = _eligible(before, wish, placed, isr, terms)
    after = _led(before, wish, placed, terms, _Outcome(isr, elr, before.leader))
    placed = _with_directories(placed, {*after.isr} - {*before.isr}, terms)
    leaves = terms.rules.forgets_leavers and not {*before.replicas} <= {*placed.replicas}
    has_leader = after.leader != before.leader or after.is_unclean or wish.renews or leaves
    record = PartitionChangeRecord(
        isr=_new(after.isr, before.isr),
        leader=after.leader if has_leader else NO_CHANGE,
        replicas=_new(placed.replicas, before.replicas),
        adding_replicas=_new(placed.adding, before.adding),
        removing_replicas=_new(placed.removing, before.removing),
        eligible_leader_replicas=_new(after.elr, before.elr),
        directories=(
            None if placed.directories == before.directories else list(placed.directories)
        ),
        is_unclean=after.is_unclean,
    )
    return placed, None if record == PartitionChangeRecord() else record


def record_of(
    topic_id: bytes,
    partition: int,
    before: PartitionRegistration,
    wish: PartitionWish,
    terms: Terms,
) -> Iterable[PartitionChangeRecord]:
    """The record of a change, if there is one."""
    _, record = change_of(before, wish, terms)
    if record is not None:
        record.topic_id, record.partition_id = topic_id, partition
        yield record


def _with_directories(
    placed: PartitionRegistration, joined: Collection[int], terms: Terms
) -> PartitionRegistration:
    """The placement, with the directories of replicas that have just come into sync."""
    new = {each: terms.directories[each] for each in joined if each in terms.directories}
    if not new:
        return placed
    known = dict(zip(placed.replicas, placed.directories, strict=False)) | new
    return replace(
        placed, directories=tuple(known.get(each, UNKNOWN_DIRECTORY) for each in placed.replicas)
    )


def _in_sync(
    before: PartitionRegistration,
    wish: PartitionWish,
    placed: PartitionRegistration,
    rules: ElectionRules,
) -> list[int]:
    isr = [each for each in (before.isr if wish.isr is None else wish.isr) if each not in wish.lost]
    isr = [each for each in isr if each in placed.replicas]
    left = [each for each in isr if each not in wish.gone and each not in wish.doubtful]
    return left if left or not rules.keeps_last_in_sync else isr


def _eligible(
    before: PartitionRegistration,
    wish: PartitionWish,
    placed: PartitionRegistration,
    isr: Collection[int],
    terms: Terms,
) -> list[int]:
    if len(isr) >= terms.min_insync and terms.rules.clears_elr:
        return []
    out = {*isr, *wish.lost, *wish.doubtful}
    had = {*before.elr, *before.isr} - out
    return [each for each in placed.replicas if each in had]


def _led(
    before: PartitionRegistration,
    wish: PartitionWish,
    placed: PartitionRegistration,
    terms: Terms,
    after: _Outcome,
) -> _Outcome:
    """Who leads then; who is elected from outside of those in sync is in sync alone."""
    active = terms.active
    order = [each for each in placed.replicas if each in active]
    in_sync = [each for each in order if each in after.isr]
    stays = before.leader in in_sync and not (wish.prefers and placed.replicas[0] in in_sync)
    if stays:
        return after
    if in_sync:
        after.leader = in_sync[0]
        return after
    if not terms.rules.elects_in_sync and order:
        return _Outcome(order[:1], [], order[0])
    eligible = [each for each in order if each in after.elr]
    if eligible:
        leader = eligible[0]
        rest = [e for e in placed.replicas if e != leader and (e in after.elr or e in after.isr)]
        is_enough = terms.min_insync <= 1
        return _Outcome([leader], [] if is_enough else _not_doubtful(rest, wish), leader)
    unclean = _unclean_leader(order, wish, placed, terms) if terms.allows_unclean else None
    if unclean is not None:
        return _Outcome([unclean], [], unclean, is_unclean=True)
    after.leader = NO_LEADER
    return after


def _unclean_leader(
    order: list[int], wish: PartitionWish, placed: PartitionRegistration, terms: Terms
) -> int | None:
    """Of those who live, one that may hold records; None if it is worth waiting for another.

    An empty disk that leads has all other replicas cut off what they hold.
    """
    full = [each for each in placed.replicas if _may_hold(each, wish, placed, terms)]
    alive = [each for each in full if each in order]
    if alive:
        return alive[0]
    if full and not terms.is_ordered and terms.rules.spares_empty:
        return None
    return order[0] if order else None


def _may_hold(
    broker: int, wish: PartitionWish, placed: PartitionRegistration, terms: Terms
) -> bool:
    """Whether a replica has been in sync on the disk that its broker has now."""
    directory = placed.directory(broker)
    is_own = directory is None or directory == terms.directories.get(broker)
    return is_own and broker not in wish.lost


def _not_doubtful(replicas: Iterable[int], wish: PartitionWish) -> list[int]:
    return [each for each in replicas if each not in wish.doubtful]


def _new(after: Collection[int], before: tuple[int, ...]) -> list[int] | None:
    return None if tuple(after) == before else list(after)
