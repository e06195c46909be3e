"""Elections: the in-sync replicas and the leader of a partition after a change.

One function, `change_of`, decides on all changes. Rules of this module:

- The last replica in sync stays in sync, dead or alive: it may have records that no other has. It
  leaves only if it has lost its records; the partition then has no leader rather than a wrong one.
- A leader is in sync and alive. It stays if it can; otherwise the first such replica in the order
  of the assignment leads. So the first replica of all is the preferred leader.
- While fewer than `min.insync.replicas` are in sync, nothing is committed (rule R9 of the leader).
  A replica that was in sync before that has every committed record: these are the *eligible leader
  replicas* (ELR, KIP-966). If no replica in sync can lead, one of them does, and nothing is lost:
    1. {1, 2, 3} are in sync, min.insync.replicas is 2. 2. Brokers 3 and 2 die: {1} is in sync, and
       {2, 3} are eligible. 3. Broker 1 appends 10, which is not committed. 4. It dies; 2 returns.
    5. Broker 2 leads: it lacks 10, but everything that was ever committed is on it.
- When a replica leaves the assignment, the leader begins a new epoch. Otherwise a late fetch of
  that replica could count for an empty one that is later placed on the same broker.
- A replica whose disk has failed does not lead until its broker starts again with that disk, also
  if it is the last one in sync.
- Any other leader may lack acknowledged records. Such an unclean election happens only if the topic
  allows it or an administrator orders it, and its epoch is recorded.
- The metadata names, per replica, the log directory in which it was last in sync (KIP-858). A
  replica on another directory is empty. It leads only if no replica that may hold records is left,
  or if an administrator orders an election while that one is away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from streamlog.broker.quorum.metadata.registrations import (
    NO_LEADER,
    UNKNOWN_DIRECTORY,
    PartitionRegistration,
)
from streamlog.protocol.messages.metadata_log import NO_CHANGE, PartitionChangeRecord
from streamlog.replace import replace

_NO_BROKERS: frozenset[int] = frozenset()


class ElectionRules(msgspec.Struct, frozen=True, kw_only=True):
    """The safety rules in force: all rules, except in a simulation that plants a fault."""

    keeps_last_in_sync: bool = True
    """The last replica in sync stays in sync when its broker dies."""
    elects_in_sync: bool = True
    """A leader is elected from the replicas in sync, not from all live ones."""
    clears_elr: bool = True
    """The ELR is emptied once enough replicas are in sync: it may lack what they commit now."""
    loses_with_directory: bool = True
    """A replica on another log directory leaves the in-sync set, even if it is the last."""
    raises_leader_epoch: bool = True
    """A new process of a broker raises the leader epochs of the partitions it led."""
    compares_partition_epoch: bool = True
    """AlterPartition is refused if the partition has changed since (compare and set)."""
    compares_broker_epoch: bool = True
    """A replica joins only with the broker epoch that the leader has seen (KIP-903)."""
    suspects_killed: bool = True
    """With flush=os, a process that was killed may lack records that it confirmed."""
    voids_refused: bool = True
    """A proposal that was refused for its replicas is not granted later by a late copy."""
    forgets_leavers: bool = True
    """The progress of a replica does not count for a later replica on the same broker."""
    forgets_damaged: bool = True
    """The progress of a replica no longer counts once it has lost records."""
    compares_damage_epoch: bool = True
    """A report of damage counts only in the leader epoch that it names."""
    hears_damage_again: bool = True
    """A repeated registration counts if it reports damage."""
    compares_lives: bool = True
    """A log directory restored from before its last registration has lost records."""
    spares_empty: bool = True
    """An unclean election passes over a replaced disk while another replica has its own disk."""


CORRECT = ElectionRules()
"""All rules, as in production."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The conditions of a decision on one partition."""

    active: Collection[int]
    """Brokers that can lead: registered, unfenced, not shutting down."""
    min_insync: int
    """The effective `min.insync.replicas`."""
    allows_unclean: bool = False
    is_ordered: bool = False
    """Whether an administrator orders an unclean election, aware of the brokers that are away."""
    directories: Mapping[int, bytes] = msgspec.field(default_factory=dict)
    """The log directory that each registered broker has."""
    rules: ElectionRules = CORRECT


class PartitionWish(msgspec.Struct, frozen=True, kw_only=True):
    """A requested change of one partition."""

    isr: tuple[int, ...] | None = None
    """The in-sync set that the leader proposes; None for no change."""
    gone: Collection[int] = _NO_BROKERS
    """Brokers that leave the in-sync set, unless they are the last in it."""
    doubtful: Collection[int] = _NO_BROKERS
    """Brokers that leave in the same way, and that may lack their newest records: they are not
    eligible either."""
    lost: Collection[int] = _NO_BROKERS
    """Brokers that have lost records: neither in sync nor eligible, even if no other is left."""
    placement: PartitionRegistration | None = None
    """The replicas, their directories, and those being added and removed; None for no change."""
    prefers: bool = False
    """Whether the preferred leader takes over from one that could stay."""
    renews: bool = False
    """Whether a leader that stays begins a new epoch."""


NOTHING = PartitionWish()


@dataclass(slots=True)
class _Outcome:
    """The in-sync set, the ELR and the leader after a change."""

    isr: list[int]
    elr: list[int]
    leader: int
    is_unclean: bool = field(default=False)


def change_of(
    before: PartitionRegistration, wish: PartitionWish, terms: Terms
) -> tuple[PartitionRegistration, PartitionChangeRecord | None]:
    """Return the partition's placement and the record of the change; None if nothing changes.

    The record lacks the topic and the partition, see `record_of`.
    """
    # In this order, because each step depends on the one before: who is in sync, who is eligible,
    # who leads, and on which disks.
    placed = before if wish.placement is None else wish.placement
    isr = _in_sync(before, wish, placed, terms.rules)
    elr = _eligible(before, wish, placed, isr, terms)
    after = _with_leader(before, wish, placed, terms, _Outcome(isr, elr, before.leader))
    placed = _with_directories(placed, {*after.isr} - {*before.isr}, terms)
    leaves = terms.rules.forgets_leavers and not {*before.replicas} <= {*placed.replicas}
    # A record that names a leader begins a leader epoch, even if the leader stays.
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
    """Iterate over the record of a change: one, or none if nothing changes."""
    _, record = change_of(before, wish, terms)
    if record is not None:
        record.topic_id, record.partition_id = topic_id, partition
        yield record


def _with_directories(
    placed: PartitionRegistration, joined: Collection[int], terms: Terms
) -> PartitionRegistration:
    """Return the placement with the present directories of replicas that have just joined."""
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
    # `lost` is removed first: the last replica in sync stays only if it still has its records.
    left = [each for each in isr if each not in wish.gone and each not in wish.doubtful]
    return left if left or not rules.keeps_last_in_sync else isr


def _eligible(
    before: PartitionRegistration,
    wish: PartitionWish,
    placed: PartitionRegistration,
    isr: Collection[int],
    terms: Terms,
) -> list[int]:
    # The replicas in sync can commit from now on, so the others may lack committed records.
    if len(isr) >= terms.min_insync and terms.rules.clears_elr:
        return []
    out = {*isr, *wish.lost, *wish.doubtful}
    # A replica that leaves the in-sync set has everything that is committed: too few are left to
    # commit more.
    had = {*before.elr, *before.isr} - out
    return [each for each in placed.replicas if each in had]


def _with_leader(
    before: PartitionRegistration,
    wish: PartitionWish,
    placed: PartitionRegistration,
    terms: Terms,
    after: _Outcome,
) -> _Outcome:
    """Return the outcome with its leader; one from outside the in-sync set is in sync alone."""
    active = terms.active
    order = [each for each in placed.replicas if each in active and not placed.is_offline(each)]
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
        # The leader alone commits if that is enough, and the others may then lack its records.
        is_enough = terms.min_insync <= 1
        return _Outcome([leader], [] if is_enough else _not_doubtful(rest, wish), leader)
    # The topic or an administrator has to allow it: this leader may lack acknowledged records.
    unclean = _unclean_leader(order, wish, placed, terms) if terms.allows_unclean else None
    if unclean is not None:
        return _Outcome([unclean], [], unclean, is_unclean=True)
    after.leader = NO_LEADER
    return after


def _unclean_leader(
    order: list[int], wish: PartitionWish, placed: PartitionRegistration, terms: Terms
) -> int | None:
    """Return a live replica that may hold records; None to wait for one that is away.

    A leader with an empty disk makes all other replicas cut off what they hold.
    """
    full = [each for each in placed.replicas if _may_hold(each, wish, placed, terms)]
    alive = [each for each in full if each in order]
    if alive:
        return alive[0]
    # Wait for a replica that is away but has its records, unless an administrator gives it up.
    if full and not terms.is_ordered and terms.rules.spares_empty:
        return None
    return order[0] if order else None


def _may_hold(
    broker: int, wish: PartitionWish, placed: PartitionRegistration, terms: Terms
) -> bool:
    """Return whether a replica was in sync on the disk that its broker has now."""
    directory = placed.directory(broker)
    is_own = directory is None or directory == terms.directories.get(broker)
    return is_own and broker not in wish.lost


def _not_doubtful(replicas: Iterable[int], wish: PartitionWish) -> list[int]:
    return [each for each in replicas if each not in wish.doubtful]


def _new(after: Collection[int], before: tuple[int, ...]) -> list[int] | None:
    return None if tuple(after) == before else list(after)
