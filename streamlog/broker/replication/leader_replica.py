"""Leader: the leader's side of one partition, its in-sync replicas and its high watermark.

Pure: events in, effects out. It follows Kafka's `Partition` and the KIPs that corrected it: KIP-101
and KIP-279 (divergence), KIP-497 (proposed in-sync sets), KIP-903 (broker epochs), KIP-966 (no
commit below `min.insync.replicas`).

Rules of this module: a replica counts with what is on its disk. The controller owns the in-sync
set: a smaller one counts once the controller confirms it, a larger one from the moment it is
proposed, because the controller may confirm it, and elect from it, before the answer arrives.

Not done here: the follower (`replica`), the in-sync set's elections (`quorum/controller`), I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from streamlog.broker.replication.replica_state import (
    CORRECT,
    NO_EPOCH,
    Acknowledge,
    AdvanceHighWatermark,
    BrokerIdentity,
    Diverging,
    Effect,
    FetchAnswer,
    ProposeIsr,
    RefuseAcknowledgement,
    ReplicaError,
    ReplicaFetch,
    ReplicaLog,
    ReplicaRules,
    ReplicaSettings,
    ReplicaState,
    Serve,
)
from streamlog.protocol.error_codes import ErrorCode

NEVER_MS = -(2**62)
"""The time at which a replica caught up that has never caught up."""


@dataclass(slots=True)
class FollowerProgress:
    """The leader's view of one follower in this epoch."""

    caught_up_ms: int
    """When the follower last had everything that the leader had."""
    end_offset: int = -1
    """The end of what is on its disk; -1 before its first fetch."""
    start_offset: int = -1
    broker_epoch: int = NO_EPOCH
    """The broker epoch of its last fetch."""
    fetched_ms: int = NEVER_MS
    leader_end_offset: int = -1
    """The leader's end offset at the follower's last fetch."""
    newest_fetch: tuple[int, int] = (NO_EPOCH, 0)
    """The broker epoch and the number of the newest fetch that has come, whatever its answer."""


class _Proposal(msgspec.Struct, frozen=True):
    """The in-sync set that this leader has proposed to the controller."""

    effect: ProposeIsr
    isr: frozenset[int]


class Leader:
    """Leader of one partition for one leader epoch.

    Invariants: the high watermark never falls, and never exceeds what is on the disk of any
    replica that is in sync or that the controller may have put in sync.

    Args:
        broker: this broker.
        log: the offsets of this broker's log, which the shell changes too.
        state: the partition's committed state, in which this broker leads.
        brokers: the live brokers and their epochs; the shell updates the mapping with metadata.
        settings: the settings of the topic and the broker.
        now_ms: the time; replicas in sync count as caught up now.
        rules: the faults to plant.
    """

    def __init__(
        self,
        broker: BrokerIdentity,
        log: ReplicaLog,
        state: ReplicaState,
        *,
        brokers: Mapping[int, int],
        settings: ReplicaSettings,
        now_ms: int,
        rules: ReplicaRules = CORRECT,
    ) -> None:
        self.epoch = state.leader_epoch
        self.epoch_start = log.end_offset
        self.partition_epoch = state.partition_epoch
        self.isr = frozenset(state.isr)
        self.is_alone = {*state.isr, *state.elr} == {broker.id}
        """Whether no other replica may be elected, and none could since the epoch began."""
        self.settings = settings
        self.followers: dict[int, FollowerProgress] = {}
        self._broker = broker
        self._log = log
        self._brokers = brokers
        self._rules = rules
        self._pending: _Proposal | None = None
        self._proposals = 0
        self._waiting: list[tuple[int, int]] = []
        self._cancelled: set[int] = set()
        self._is_mirror = state.mirror_of is not None
        waits = self._is_mirror and self.is_alone
        self._admits_from_ms = now_ms + settings.lag_max_ms if waits else NEVER_MS
        self._set_replicas(state, now_ms)

    def follower_lag(self) -> dict[int, int]:
        """Return the number of records that each follower has not fetched yet, by broker."""
        end = self._log.end_offset
        return {broker: end - max(each.end_offset, 0) for broker, each in self.followers.items()}

    @property
    def is_under_min_isr(self) -> bool:
        """Whether fewer replicas are in sync than a commit requires (KIP-966)."""
        return len(self.isr) < self.min_insync

    @property
    def replicated_end(self) -> int:
        """The offset up to which all in-sync replicas have the log on disk.

        A high watermark can be above it: a mirror that begins anew, at its source's log start,
        commits what is below, and its followers begin there with their next fetch.
        """
        return min(self._log.counted_offset, self._replicated(None))

    @property
    def is_isr_pending(self) -> bool:
        """Whether the controller has not answered the last proposed in-sync set."""
        return self._pending is not None

    @property
    def is_offset_known(self) -> bool:
        """Whether the high watermark has reached what earlier leaders may have committed.

        Until then the latest offset is not known, and ListOffsets gets an error (KIP-207).
        """
        return self._log.high_watermark >= self.epoch_start

    @property
    def low_watermark(self) -> int:
        """The lowest start offset of all live replicas, as DeleteRecords reports it (KIP-107)."""
        followers = self.followers.items()
        starts = [each.start_offset for broker, each in followers if broker in self._brokers]
        return min([self._log.start_offset, *starts])

    def nearest(self, brokers: Iterable[int], offset: int) -> int | None:
        """Return the one of these brokers that consumers should read `offset` from (KIP-392).

        It is in sync, its log contains `offset`, and it has the largest end offset of these; None
        if there is no such broker. A replica out of sync may lag, and its readers would too.
        """
        able = [
            (each.end_offset, each.caught_up_ms, -broker)
            for broker in brokers
            if broker in self.isr and (each := self.followers.get(broker)) is not None
            if each.start_offset <= offset <= each.end_offset and self._is_eligible(broker, each)
        ]
        return -max(able)[-1] if able else None

    def on_appended(self, end_offset: int) -> list[Effect]:
        """Note that the log ends at `end_offset`, which need not be synced."""
        self._log.end_offset = end_offset
        return [] if self._log.strict else self._advance()

    def on_flushed(self) -> list[Effect]:
        """Advance after a sync, whose offset the shell has put into the log's offsets."""
        return self._advance()

    def on_cut(self, offset: int) -> None:
        """Note that this leader has cut its log at `offset`, as only that of a mirror may.

        1. Follower 2 fetches from 100 in this epoch. 2. The leader cuts its log at 60, as the
        source has lost the rest, and copies other records up to 80. 3. Follower 2 has not fetched
        since: if it still counted with 100, records would be committed that it does not have.
        """
        self.epoch_start = min(self.epoch_start, offset)
        for follower in self.followers.values():
            follower.end_offset = follower.leader_end_offset = -1

    def on_settings(self, settings: ReplicaSettings) -> list[Effect]:
        """Apply changed settings: a smaller `min.insync.replicas` may commit records."""
        self.settings = settings
        self._set_min_insync()
        return self._advance()

    def wait(self, ticket: int, next_offset: int) -> list[Effect]:
        """Acknowledge `ticket` once everything below `next_offset` is committed.

        A duplicate batch waits too: its first attempt may not be committed yet.
        """
        heapq.heappush(self._waiting, (next_offset, ticket))
        return self._acknowledge()

    def cancel(self, ticket: int) -> None:
        """Drop `ticket`, which must be waiting, because its answer is no longer needed."""
        self._cancelled.add(ticket)

    def take_tickets(self) -> tuple[int, ...]:
        """Remove and return all waiting tickets, which this leader will not acknowledge."""
        waiting, self._waiting = sorted(self._waiting), []
        gone, self._cancelled = self._cancelled, set()
        return tuple(ticket for _, ticket in waiting if ticket not in gone)

    def on_fetch(self, fetch: ReplicaFetch, now_ms: int) -> tuple[FetchAnswer, list[Effect]]:
        """Answer a follower's fetch, and count what it confirms."""
        follower = self.followers.get(fetch.broker)
        refused = self._refusal(fetch, follower)
        if refused is not None:
            return ReplicaError(refused, self._log.start_offset), []
        # 1. A mirror begins anew at 8, with the source's records of epoch 4. 2. Follower 2 ends at
        # 2, with a stray of epoch 9. 3. If it had to cut at 0, it would stop: 0 is committed there.
        if self._is_mirror and fetch.offset < self._log.start_offset:
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, self._log.start_offset), []
        # The check comes before the fetch counts: a diverging log confirms nothing.
        diverging = None
        # Nearly always, its last record is of this epoch, and this log has it.
        is_here = fetch.last_epoch == self.epoch and fetch.offset <= self._log.end_offset
        if self._is_mirror or not is_here:
            diverging = self._divergence(fetch)
        if diverging is not None:
            # 1. Follower 1 ends at 36, and has to cut at 35. 2. This log gets 35 to 37 from its
            # source, which are those that the follower cuts. 3. The network repeats the fetch: it
            # does not diverge any more, and would confirm 36.
            if follower is not None and fetch.number:
                follower.newest_fetch = fetch.broker_epoch, fetch.number + 1
            return diverging, []
        if follower is None or not self._log.start_offset <= fetch.offset <= self._log.end_offset:
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, self._log.start_offset), []
        self._note(follower, fetch, now_ms)
        joins = [] if fetch.broker in self.isr else self._expand(fetch.broker, follower, now_ms)
        effects = [*joins, *self._advance(now_ms)]
        return Serve(self._log.high_watermark, self._log.start_offset), effects

    def on_unchanged(self, broker: int, asked_ms: int) -> None:
        """Note that a follower which had everything has last asked at `asked_ms` (KIP-227).

        Call it when the partition makes progress. A session does not name the partition, so nothing
        else tells that the follower was alive, and still had everything, at `asked_ms`:

        1. Follower 2 has everything, and the partition is idle for a minute. 2. A record is
        appended. 3. If its last fetch were all that counts, follower 2 would have lagged for that
        minute, and would leave the in-sync replicas at once.
        """
        follower = self.followers.get(broker)
        if follower is None or not 0 <= follower.leader_end_offset <= follower.end_offset:
            return
        if broker not in self._maximal_isr():
            return  # It left, so only a new fetch counts.
        follower.caught_up_ms = max(follower.caught_up_ms, asked_ms)
        follower.fetched_ms = max(follower.fetched_ms, asked_ms)

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Propose to remove the replicas that lag for longer than `lag_max_ms`."""
        # One proposal at a time: a second one would name a partition epoch that is already old.
        if self._pending is not None:
            return []
        late = {
            broker
            for broker in self.isr
            if (follower := self.followers.get(broker)) is not None
            and not self._is_caught_up(follower, now_ms)
        }
        return self._propose(self.isr - late) if late else []

    def on_isr_answer(
        self,
        number: int,
        code: int,
        *,
        leader_epoch: int,
        partition_epoch: int,
        isr: frozenset[int],
    ) -> list[Effect]:
        """Handle the controller's answer to proposal `number`.

        After INELIGIBLE_REPLICA the proposal is void, and so are repetitions of it that are still
        on their way: the partition epoch has changed. After any other error the controller may
        have changed the in-sync set, by this proposal or by another event. The proposal then stays
        pending, and so counts for commits, until metadata arrives.
        """
        if self._pending is None or self._pending.effect.number != number:
            return []
        if code == ErrorCode.INELIGIBLE_REPLICA:
            self._pending = None
        elif code == ErrorCode.NONE and leader_epoch == self.epoch:
            # An answer that is older than the metadata here must not bring back an old set.
            if partition_epoch < self.partition_epoch:
                return []
            self._pending = None
            self.isr, self.partition_epoch = isr, partition_epoch
        return self._advance()

    def admit_others(self) -> None:
        """Note that the source of this mirror has answered: the log need not begin anew any more.

        Until then, a leader that was alone in sync when its epoch began stays so, for as long as a
        replica may lag at most. A source may never answer, and the partition needs its replicas.
        """
        self._admits_from_ms = NEVER_MS

    def proposal(self) -> ProposeIsr | None:
        """Return the proposal that the controller has not answered, to repeat it; or None."""
        return None if self._pending is None else self._pending.effect

    def on_metadata(self, state: ReplicaState, now_ms: int) -> list[Effect]:
        """Apply newer metadata of this leader epoch."""
        # Any proposal is void: it named an older partition epoch, so it is either in this state
        # or the controller will refuse it.
        self._pending = None
        left = self.isr.difference(state.isr)
        self.isr, self.partition_epoch = frozenset(state.isr), state.partition_epoch
        self._set_replicas(state, now_ms)
        for broker in left & self.followers.keys():
            # 1. Follower 3 has everything; its disk fails, and it leaves. 2. A record is appended.
            # 3. If follower 3 counted as caught up, no fetch of follower 2 would commit the record.
            self.followers[broker].caught_up_ms = NEVER_MS
        return self._advance()

    def _set_replicas(self, state: ReplicaState, now_ms: int) -> None:
        known = self.followers
        self.followers = {
            broker: known.get(broker)
            or FollowerProgress(now_ms if broker in state.isr else NEVER_MS)
            for broker in state.replicas
            if broker != self._broker.id
        }
        self._set_min_insync()

    def _set_min_insync(self) -> None:
        self.min_insync = min(self.settings.min_insync, len(self.followers) + 1)
        """The effective `min.insync.replicas`: at most the number of replicas."""

    def _refusal(self, fetch: ReplicaFetch, follower: FollowerProgress | None) -> int | None:
        # Fencing (KIP-320): 1. Broker 2 leads epoch 4; follower 3 fetches from 10, and the fetch
        # is delayed. 2. Broker 1 leads epoch 5, and follower 3 cuts its log to 8. 3. Broker 2 leads
        # epoch 6, and the fetch arrives: it would confirm 8 and 9, which follower 3 has not.
        if not self._rules.ignores_leader_epochs and fetch.leader_epoch != self.epoch:
            older = fetch.leader_epoch < self.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        if follower is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._rules.ignores_broker_epochs:
            return None
        # 1. Follower 2 has synced up to 10 and restarts with a disk that lost 8 and 9. 2. A fetch
        # that it sent before, from offset 10, arrives late. Only its broker epoch tells (KIP-903).
        registered = self._brokers.get(fetch.broker, NO_EPOCH)
        if fetch.broker_epoch < registered:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        # 1. Follower 1 of a mirror, which ends at 4, fetches; the request is delayed, and the
        # follower asks again on another connection. 2. This log ends at 1, so the follower cuts.
        # 3. The source's records 1 to 12 are copied here: those that the follower has cut, with
        # their epoch. 4. The first request arrives, and would confirm 4.
        newest = fetch.broker_epoch, fetch.number
        if fetch.number and newest < follower.newest_fetch:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        follower.newest_fetch = newest
        return None

    def _divergence(self, fetch: ReplicaFetch) -> Diverging | None:
        """Return where the follower's log diverges from this one, or None (KIP-101, KIP-279).

        The follower's end offset is not enough; the epoch has to match too:
          1. Broker 1 leads epoch 1 and appends 7, which is not copied; broker 2 leads epoch 2 and
             appends another 7, which is not copied either. Both stop.
          2. Broker 1 leads epoch 3 and appends 8. Broker 2 returns and fetches from 8, with last
             epoch 2. Broker 1 has no epoch 2: the last one before is epoch 1, which ends at 8.
          3. 8 is not below 8, so the ends agree. Yet broker 2's 7 is another record: it has to cut,
             because epoch 1 is not epoch 2.
        """
        if fetch.last_epoch == NO_EPOCH or self._rules.skips_divergence_check:
            return None
        # A mirror partition has no batches of this epoch: its batches have the source's epochs.
        if fetch.last_epoch >= self.epoch and not self._is_mirror:
            epoch, end_offset = self.epoch, self._log.end_offset
        else:
            epoch, end_offset = self._log.end_of(fetch.last_epoch)
        other = epoch < fetch.last_epoch and not self._rules.compares_ends_only
        return Diverging(epoch, end_offset) if other or end_offset < fetch.offset else None

    def _note(self, follower: FollowerProgress, fetch: ReplicaFetch, now_ms: int) -> None:
        end_offset = self._log.end_offset
        if fetch.offset >= end_offset:
            follower.caught_up_ms = now_ms
        elif 0 <= follower.leader_end_offset <= fetch.offset:
            # It has what this leader had at its last fetch, so it was caught up at that time. By
            # its end alone, a follower of a busy partition would never be caught up.
            follower.caught_up_ms = max(follower.caught_up_ms, follower.fetched_ms)
        follower.leader_end_offset = end_offset
        follower.fetched_ms = now_ms
        follower.end_offset, follower.start_offset = fetch.offset, fetch.log_start
        follower.broker_epoch = fetch.broker_epoch

    def _is_caught_up(self, follower: FollowerProgress, now_ms: int) -> bool:
        if follower.end_offset == self._log.end_offset:
            return True
        return now_ms - follower.caught_up_ms <= self.settings.lag_max_ms

    def _is_eligible(self, broker: int, follower: FollowerProgress) -> bool:
        if self._rules.ignores_broker_epochs:
            return True
        return self._brokers.get(broker, NO_EPOCH) == follower.broker_epoch != NO_EPOCH

    def _expand(self, broker: int, follower: FollowerProgress, now_ms: int) -> list[Effect]:
        if self._pending is not None:
            return []
        # 1. A mirror is to begin anew, so the controller has begun an epoch in which its leader is
        # alone. 2. Followers end where it does, and fetch before the source answers. 3. If they
        # joined, the leader would need another epoch, in which they fetch first again.
        if now_ms < self._admits_from_ms:
            return []
        # KIP-966. 1. Leader 1 of epoch 5 has records up to 10, its high watermark is known as 6.
        # 2. Replica 2 has synced up to 8 and would join. 3. An earlier leader may have committed
        # 9: if leader 1 stopped and replica 2 were elected from the in-sync set, 9 would be lost.
        started = follower.end_offset >= self.epoch_start or self._rules.joins_before_epoch_start
        if not started or follower.end_offset < self._log.high_watermark:
            return []
        return self._propose(self.isr | {broker}) if self._is_eligible(broker, follower) else []

    def _propose(self, isr: frozenset[int]) -> list[Effect]:
        self._proposals += 1
        self.is_alone = False
        members = tuple((broker, self._seen_epoch(broker)) for broker in sorted(isr))
        effect = ProposeIsr(self._proposals, self.epoch, self.partition_epoch, members)
        self._pending = _Proposal(effect, isr)
        return [effect]

    def _seen_epoch(self, broker: int) -> int:
        if broker == self._broker.id:
            return self._broker.epoch
        return self.followers[broker].broker_epoch

    def _maximal_isr(self) -> frozenset[int]:
        """Return the replicas that are in sync, or may be by the pending proposal (KIP-497).

        1. The in-sync set is {1}; leader 1 proposes {1, 2}. 2. The controller commits that, and
        its answer is delayed. 3. Leader 1 appends 10. If it committed 10 by itself and stopped,
        the controller could elect 2, which lacks 10. So 2 counts from the proposal on; a replica
        that the proposal removes counts until the controller has confirmed it.
        """
        if self._pending is None:
            return self.isr
        expands = self._pending.isr >= self.isr
        if expands and not self._rules.forgets_pending_isr:
            return self._pending.isr
        return self._pending.isr if not expands and self._rules.shrinks_at_once else self.isr

    def _advance(self, now_ms: int | None = None) -> list[Effect]:
        log = self._log
        committed = log.counted_offset
        if committed > log.high_watermark and not self._rules.commits_on_append:
            committed = min(committed, self._replicated(now_ms))
        if committed <= log.high_watermark:
            waiting = self._waiting
            is_due = bool(waiting) and waiting[0][0] <= log.high_watermark
            return self._acknowledge() if is_due else []
        # Below min.insync.replicas nothing commits (KIP-966): otherwise a lone leader would commit
        # records that the eligible leader replicas, which stay electable, do not have.
        if self.is_under_min_isr and not self._rules.ignores_min_insync_in_commits:
            return self._acknowledge()
        log.high_watermark = committed
        return [AdvanceHighWatermark(committed), *self._acknowledge()]

    def _replicated(self, now_ms: int | None) -> int:
        """Return the offset up to which all replicas that count have the log on disk.

        At a fetch (`now_ms`) a caught-up replica outside of the in-sync set counts too: under
        constant load the high watermark would otherwise stay ahead of it, and it could never join.
        """
        counted = self.isr if self._pending is None else self._maximal_isr()
        ends = [self._log.end_offset]
        for broker, follower in self.followers.items():
            if broker in counted:
                ends.append(follower.end_offset)
            elif now_ms is not None and follower.end_offset >= self._log.high_watermark:
                recent = now_ms - follower.caught_up_ms <= self.settings.lag_max_ms
                if recent and self._is_eligible(broker, follower):
                    ends.append(follower.end_offset)
        return min(ends)

    def _acknowledge(self) -> list[Effect]:
        effects: list[Effect] = []
        if not self._waiting or self._waiting[0][0] > self._log.high_watermark:
            return effects
        refuse = self.is_under_min_isr and not self._rules.ignores_min_insync_in_answers
        while self._waiting and self._waiting[0][0] <= self._log.high_watermark:
            _, ticket = heapq.heappop(self._waiting)
            if ticket in self._cancelled:
                self._cancelled.discard(ticket)  # Removal from the middle of a heap is costly.
                continue
            effects.append(RefuseAcknowledgement(ticket) if refuse else Acknowledge(ticket))
        return effects
