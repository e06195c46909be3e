"""Leader: the leader's side of one partition: who is in sync, and what is committed.

Pure: events in, decisions out. After Kafka's `Partition` and the KIPs that mended it: 101 and 279
(divergence), 497 (proposed in-sync sets), 903 (broker epochs), 966 (no commit below
min.insync.replicas).
Rule of the file: what is counted of a replica is on its disk, and the controller owns the in-sync
set. A proposal to shrink it counts from the controller's confirmation on, one to expand it from
the moment it is sent, for it may have been confirmed by then.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

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
"""When a replica was last caught up that never was."""


@dataclass(slots=True)
class FollowerProgress:
    """What the leader knows of one follower in this epoch."""

    caught_up_ms: int
    """When it last had everything that the leader had."""
    end_offset: int = -1
    start_offset: int = -1
    broker_epoch: int = NO_EPOCH
    fetched_ms: int = NEVER_MS
    leader_end_offset: int = -1
    """Where the leader's log ended when the follower fetched last."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    """The in-sync set that the controller was asked for."""

    effect: ProposeIsr
    isr: frozenset[int]


class Leader:
    """Leader of one partition for one leader epoch.

    `brokers` are the brokers that are alive, with their epochs, as this one knows from metadata;
    the mapping is the shell's and changes with it.
    Invariants: the high watermark never falls, and never passes what is on the disk of any
    replica that is in sync or may have been made so.
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
        self._set_replicas(state, now_ms)

    def follower_lag(self) -> dict[int, int]:
        """Records that followers have not fetched yet, by broker."""
        end = self._log.end_offset
        return {broker: end - max(each.end_offset, 0) for broker, each in self.followers.items()}

    @property
    def is_under_min_isr(self) -> bool:
        """Whether fewer replicas are in sync than a commit takes."""
        return len(self.isr) < self.min_insync

    @property
    def min_insync(self) -> int:
        """What `min.insync.replicas` comes to: no more than there are replicas."""
        return min(self.settings.min_insync, len(self.followers) + 1)

    @property
    def is_isr_pending(self) -> bool:
        """Whether the controller was asked for another in-sync set, and has not answered."""
        return self._pending is not None

    @property
    def is_offset_known(self) -> bool:
        """Whether the high watermark has reached what earlier leaders may have committed."""
        return self._log.high_watermark >= self.epoch_start

    @property
    def low_watermark(self) -> int:
        """Before this offset no replica that lives has anything any more."""
        followers = self.followers.items()
        starts = [each.start_offset for broker, each in followers if broker in self._brokers]
        return min([self._log.start_offset, *starts])

    def nearest(self, brokers: Iterable[int], offset: int) -> int | None:
        """Of these brokers the one in sync, with `offset` in its log, that has most (KIP-392).

        Who is not in sync may stay behind, and its readers would with it.
        """
        able = [
            (each.end_offset, each.caught_up_ms, -broker)
            for broker in brokers
            if broker in self.isr and (each := self.followers.get(broker)) is not None
            if each.start_offset <= offset <= each.end_offset and self._is_eligible(broker, each)
        ]
        return -max(able)[-1] if able else None

    def on_appended(self, end_offset: int) -> list[Effect]:
        """The log now ends at `end_offset`; it is not on disk by that."""
        self._log.end_offset = end_offset
        return [] if self._log.strict else self._advance()

    def on_flushed(self) -> list[Effect]:
        """More of the log is on disk."""
        return self._advance()

    def on_settings(self, settings: ReplicaSettings) -> list[Effect]:
        """The topic's settings have changed."""
        self.settings = settings
        return self._advance()

    def wait(self, ticket: int, next_offset: int) -> list[Effect]:
        """Somebody waits until everything below `next_offset` is committed.

        Also of a duplicate: the first attempt may not be committed yet.
        """
        heapq.heappush(self._waiting, (next_offset, ticket))
        return self._acknowledge()

    def cancel(self, ticket: int) -> None:
        """Nobody waits for `ticket` any more; it must be waiting."""
        self._cancelled.add(ticket)

    def take_tickets(self) -> tuple[int, ...]:
        """Everybody who waits, and will not be acknowledged."""
        waiting, self._waiting = sorted(self._waiting), []
        gone, self._cancelled = self._cancelled, set()
        return tuple(ticket for _, ticket in waiting if ticket not in gone)

    def on_fetch(self, fetch: ReplicaFetch, now_ms: int) -> tuple[FetchAnswer, list[Effect]]:
        """A follower asks from an offset, so everything before it is on its disk."""
        follower = self.followers.get(fetch.broker)
        refused = self._refusal(fetch, follower)
        if refused is not None:
            return ReplicaError(refused, self._log.start_offset), []
        diverging = self._divergence(fetch)
        if diverging is not None:
            return diverging, []
        if follower is None or not self._log.start_offset <= fetch.offset <= self._log.end_offset:
            return ReplicaError(ErrorCode.OFFSET_OUT_OF_RANGE, self._log.start_offset), []
        self._note(follower, fetch, now_ms)
        effects = [*self._expand(fetch.broker, follower), *self._advance(now_ms)]
        return Serve(self._log.high_watermark, self._log.start_offset), effects

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Time has passed: whoever lags for too long is out of sync."""
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
        """The controller has answered proposal `number`.

        INELIGIBLE_REPLICA: it is void, copies of it that are still under way included: the
        partition epoch is another one by now. Any other error: something may have changed, by it
        or by what metadata has not told this broker yet; the proposal stays until that comes.
        """
        if self._pending is None or self._pending.effect.number != number:
            return []
        if code == ErrorCode.INELIGIBLE_REPLICA:
            self._pending = None
        elif code == ErrorCode.NONE and leader_epoch == self.epoch:
            if partition_epoch < self.partition_epoch:
                return []
            self._pending = None
            self.isr, self.partition_epoch = isr, partition_epoch
        return self._advance()

    def proposal(self) -> ProposeIsr | None:
        """What the controller was asked for and has not answered: ask again."""
        return None if self._pending is None else self._pending.effect

    def on_metadata(self, state: ReplicaState, now_ms: int) -> list[Effect]:
        """The controller has committed something new for this epoch."""
        self._pending = None
        self.isr, self.partition_epoch = frozenset(state.isr), state.partition_epoch
        self._set_replicas(state, now_ms)
        return self._advance()

    def _set_replicas(self, state: ReplicaState, now_ms: int) -> None:
        known = self.followers
        self.followers = {
            broker: known.get(broker)
            or FollowerProgress(now_ms if broker in state.isr else NEVER_MS)
            for broker in state.replicas
            if broker != self._broker.id
        }

    def _refusal(self, fetch: ReplicaFetch, follower: FollowerProgress | None) -> int | None:
        if not self._rules.ignores_leader_epochs and fetch.leader_epoch != self.epoch:
            older = fetch.leader_epoch < self.epoch
            return ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH
        if follower is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self._rules.ignores_broker_epochs:
            return None
        registered = self._brokers.get(fetch.broker, NO_EPOCH)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if fetch.broker_epoch < registered else None

    def _divergence(self, fetch: ReplicaFetch) -> Diverging | None:
        """Where the follower's log leaves ours, which its end alone does not tell (KIP-279)."""
        if fetch.last_epoch == NO_EPOCH or self._rules.skips_divergence_check:
            return None
        if fetch.last_epoch >= self.epoch:
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
            # It has by now what we had when it fetched last: then it was caught up.
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

    def _expand(self, broker: int, follower: FollowerProgress) -> list[Effect]:
        if self._pending is not None or broker in self.isr:
            return []
        started = follower.end_offset >= self.epoch_start or self._rules.joins_before_epoch_start
        if not started or follower.end_offset < self._log.high_watermark:
            return []
        return self._propose(self.isr | {broker}) if self._is_eligible(broker, follower) else []

    def _propose(self, isr: frozenset[int]) -> list[Effect]:
        self._proposals += 1
        members = tuple((broker, self._seen_epoch(broker)) for broker in sorted(isr))
        effect = ProposeIsr(self._proposals, self.epoch, self.partition_epoch, members)
        self._pending = _Proposal(effect, isr)
        return [effect]

    def _seen_epoch(self, broker: int) -> int:
        if broker == self._broker.id:
            return self._broker.epoch
        return self.followers[broker].broker_epoch

    def _maximal_isr(self) -> frozenset[int]:
        """Whoever is in sync, or may be by what was proposed."""
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
        frozen = self.is_under_min_isr and not self._rules.ignores_min_insync_in_commits
        if frozen or committed <= log.high_watermark:
            return self._acknowledge()
        log.high_watermark = committed
        return [AdvanceHighWatermark(committed), *self._acknowledge()]

    def _replicated(self, now_ms: int | None) -> int:
        """What every replica has that counts, or that is about to join and would never else."""
        counted = self._maximal_isr()
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
        refuse = self.is_under_min_isr and not self._rules.ignores_min_insync_in_answers
        while self._waiting and self._waiting[0][0] <= self._log.high_watermark:
            _, ticket = heapq.heappop(self._waiting)
            if ticket in self._cancelled:
                self._cancelled.discard(ticket)
                continue
            effects.append(RefuseAcknowledgement(ticket) if refuse else Acknowledge(ticket))
        return effects
