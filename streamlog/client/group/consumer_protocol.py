"""ConsumerMember: one member of a group whose coordinator assigns (KIP-848).

A state machine without I/O, with the interface of `classic_protocol.GroupMember`: `next` returns
the action that is due, `on_heartbeat` takes the answer, and the caller takes over `offered` after
it has given up `revoking`. There are no rounds; the coordinator and the members reconcile:

1. A has t-0 and t-1 in epoch 5. B joins, and the coordinator's target is t-0 for A, t-1 for B.
2. A's heartbeat is answered with the assignment t-0. A revokes t-1, which its caller finishes.
3. A's next heartbeat, sent at once, says that it owns t-0 only. A moves to epoch 6.
4. B's next heartbeat is answered with the assignment t-1.

A heartbeat says only what has changed (topics, owned partitions). After a lost answer or a new
coordinator, the next one says everything. A fenced member has lost its assignment, and rejoins with
epoch 0 under the id that it generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final, TypeAlias

import msgspec

from streamlog.client.group.classic_protocol import (
    RETRY_BACKOFF_MS,
    GroupPatience,
    GroupSettings,
    Leave,
    MemberPhase,
    WaitForGroup,
)
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages import consumer_groups as wire
from streamlog.record import TopicPartition

Held: TypeAlias = frozenset[tuple[bytes, int]]
"""Partitions as (topic id, number), as the coordinator names them."""

JOINING_EPOCH: Final = 0
LEFT_EPOCH: Final = -1
AWAY_EPOCH: Final = -2
"""The epoch of a static member that leaves and will return (KIP-345)."""
UNRELEASED_RETRY_MS: Final = 1_000
UNRELEASED_TIMEOUT_MS: Final = 60_000
"""How long a static member retries while another process holds its instance id. It exceeds the
session timeout, after which the coordinator removes a process that was killed."""
NAMES_RETRY_MS: Final = 1_000
"""Wait before the topics are looked up again for the name of an unknown id."""
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


class Tell(msgspec.Struct, frozen=True):
    """Send the heartbeat; pass the answer to `on_heartbeat`."""

    request: wire.ConsumerGroupHeartbeatRequest


class NameTopics(msgspec.Struct, frozen=True):
    """Look up the ids of the subscribed topics; pass them to `on_names`."""


Action: TypeAlias = Tell | NameTopics | Leave | WaitForGroup


class ConsumerMember:
    """The member's side of KIP-848's group protocol.

    `assignment` is what the caller may read. It changes only in `on_assigned` and `on_revoked`,
    which are called within the caller's poll.
    """

    is_leader: Final = False
    """Always False: the coordinator assigns."""
    read_together: Final[frozenset[str]] = frozenset()
    """Always empty: the coordinator knows the topics of the other members."""

    def __init__(self, settings: GroupSettings, topics: Sequence[str], *, member_id: str) -> None:
        self.phase = MemberPhase.UNJOINED
        self.member_id = member_id
        self.generation_id = JOINING_EPOCH
        """The member's epoch."""
        self.coordinator_lost = False
        self.assignment: frozenset[TopicPartition] = frozenset()
        self.is_lost = False
        self.absence = ""
        self._settings = settings
        self._topics = tuple(sorted(set(topics)))
        self._patience = GroupPatience(settings.max_poll_interval_ms)
        self._target: Held | None = None
        """The coordinator's assignment; None once all of it is offered to the caller."""
        self._offered: frozenset[TopicPartition] | None = None
        self._is_new = True
        """Whether nothing was offered since the member joined."""
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._sent_topics: tuple[str, ...] | None = None
        self._confirmed_owned: frozenset[TopicPartition] | None = None
        """The owned partitions that the coordinator has confirmed; None if that is in doubt."""
        self._telling: frozenset[TopicPartition] = frozenset()
        self._is_unanswered = False
        """Whether the coordinator waits to hear what the member owns after its last assignment. It
        must hear even if nothing has changed: the assignment may have taken back a partition that
        the caller never had."""
        self._is_answering = False
        self._interval_ms = settings.heartbeat_interval_ms
        self._not_before_ms = 0
        self._heartbeat_ms = 0
        self._names_ms = 0
        self._asked_ms = self._heard_ms = 0
        self._unreleased_since_ms: int | None = None

    def next(self, now_ms: int) -> Action:
        """Return the action that is due now."""
        if (
            self.phase not in {MemberPhase.AWAY, MemberPhase.LEFT}
            and now_ms >= self._patience.ends_ms
        ):
            return self._leave_unpolled()
        action: Action = WaitForGroup(None)
        match self.phase:
            case MemberPhase.UNJOINED if self._topics and now_ms >= self._not_before_ms:
                self.phase, self._asked_ms = MemberPhase.JOINING, now_ms
                action = Tell(self._request())
            case MemberPhase.UNJOINED if self._topics:
                action = WaitForGroup(self._not_before_ms)
            case MemberPhase.STABLE if now_ms >= self._names_due_ms:
                action = NameTopics()
            case MemberPhase.STABLE if now_ms >= self._beat_due_ms:
                self._heartbeat_ms, self._asked_ms = now_ms + self._interval_ms, now_ms
                action = Tell(self._request())
            case MemberPhase.STABLE:
                due_ms = min(self._names_due_ms, self._beat_due_ms, self._patience.ends_ms)
                action = WaitForGroup(due_ms)
        return action

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics to which the caller has subscribed."""
        return self._topics

    @property
    def offered(self) -> frozenset[TopicPartition] | None:
        """A new assignment that the caller has not taken over yet; None if there is none."""
        return self._offered

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """The partitions that the caller must give up now."""
        if self.phase is MemberPhase.REVOKING:
            return self.assignment
        return frozenset() if self._offered is None else self.assignment - self._offered

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has accepted the member."""
        return self.generation_id != JOINING_EPOCH

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator accepts commits with the member's epoch."""
        return self.phase in {MemberPhase.STABLE, MemberPhase.REVOKING}

    def is_current(self, now_ms: int) -> bool:
        """Whether the coordinator has answered a request of the last `session_timeout_ms`.

        See `GroupMember.is_current`.
        """
        return now_ms - self._heard_ms < self._settings.session_timeout_ms

    def on_heartbeat(self, response: wire.ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        """Handle the answer to a heartbeat: the epoch, perhaps an assignment, or an error.

        Raises:
            LogError: the error is not one that a retry or a rejoin cures.
        """
        if self.phase is MemberPhase.LEFT:
            return
        if response.error_code:
            self._refused(response, now_ms)
            return
        self.phase = MemberPhase.STABLE
        self.absence, self._unreleased_since_ms = "", None
        self.generation_id = response.member_epoch
        if self._is_answering:
            self._confirmed_owned, self._is_unanswered = self._telling, False
        # The time of the question: the coordinator's session began no earlier.
        self._heard_ms = self._asked_ms
        self._interval_ms = response.heartbeat_interval_ms
        # An answer that took longer than a session proves nothing about now: the next heartbeat is
        # due at once.
        self._heartbeat_ms = self._not_before_ms = now_ms
        if self.is_current(now_ms):
            self._heartbeat_ms += self._interval_ms
        if response.assignment is not None:
            self._is_unanswered = True
            self._target = _held(response.assignment.topic_partitions)
            self._names_ms = now_ms
            self._offer()

    def on_names(self, names: Mapping[bytes, str], now_ms: int) -> None:
        """Note the names of topic ids; assigned partitions without a name stay pending."""
        self._names |= names
        self._ids |= {name: topic_id for topic_id, name in names.items()}
        self._names_ms = now_ms + NAMES_RETRY_MS
        self._offer()

    def on_coordinator_lost(self, now_ms: int) -> None:
        """Handle a heartbeat without an answer, or a coordinator that has moved."""
        self.coordinator_lost = True
        self._try_again(now_ms + RETRY_BACKOFF_MS)

    def on_coordinator_found(self) -> None:
        """Note that requests can be sent again."""
        self.coordinator_lost = False

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """Note a poll; a member that is away rejoins."""
        self._patience.on_poll(now_ms, waits=waits)
        if self.phase is MemberPhase.AWAY:
            self.phase = MemberPhase.UNJOINED

    def on_assigned(self, now_ms: int) -> frozenset[TopicPartition]:  # noqa: ARG002 - as `GroupMember`
        """Take over the `offered` assignment; return the partitions that are new in it."""
        offered = self._offered or frozenset()
        added, self._offered = offered - self.assignment, None
        self.assignment = offered
        return added

    def on_revoked(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        """Give up the partitions in `revoking`: the caller has finished with them."""
        self.assignment -= partitions
        if self.phase is MemberPhase.REVOKING:
            self.is_lost = False
            self.phase, self._not_before_ms = MemberPhase.UNJOINED, now_ms

    def on_subscription(self, topics: Sequence[str]) -> None:
        """Change the topics; a heartbeat that says so is due at once."""
        self._topics = tuple(sorted(set(topics)))

    def on_request(self) -> None:
        """Do nothing: the coordinator assigns whenever something changes."""

    def on_counts(self, partitions: Mapping[str, int]) -> None:
        """Do nothing: the coordinator knows the partition counts."""

    def leave(self, *, for_good: bool = False) -> wire.ConsumerGroupHeartbeatRequest | None:
        """End the membership; return the request that says so, if the coordinator knows the member.

        A static member says that it will return, unless it leaves `for_good`.
        """
        request = self._farewell(for_good=for_good)
        self.phase, self._offered = MemberPhase.LEFT, None
        return request

    def __str__(self) -> str:
        return (
            f"member {self.member_id} of group {self._settings.group_id} "
            f"({self.phase.name.lower()}, epoch {self.generation_id}, "
            f"partitions: {len(self.assignment)})"
        )

    @property
    def _names_due_ms(self) -> float:
        return inf if self._target is None else self._names_ms

    @property
    def _owes_owned(self) -> bool:
        """Whether the next heartbeat must say what the member owns; see `_try_again`."""
        is_confirmed = self._confirmed_owned == self.assignment and not self._is_unanswered
        return self._offered is None and not is_confirmed

    @property
    def _beat_due_ms(self) -> int:
        """When the next heartbeat is due: at once if anything changed, as other members may wait.

        Otherwise after the interval that the coordinator has set.
        """
        has_news = self._sent_topics != self._topics or self._owes_owned
        return self._not_before_ms if has_news else self._heartbeat_ms

    def _request(self) -> wire.ConsumerGroupHeartbeatRequest:
        settings, joins = self._settings, not self.is_known
        request = wire.ConsumerGroupHeartbeatRequest(
            group_id=settings.group_id,
            member_id=self.member_id,
            member_epoch=self.generation_id,
            instance_id=settings.instance_id,
            subscribed_topic_names=None,
            topic_partitions=None,
        )
        tells_all = joins or self._confirmed_owned is None
        if tells_all:
            request.rebalance_timeout_ms = settings.rebalance_timeout_ms
            request.server_assignor = settings.remote_assignor
        if tells_all or self._sent_topics != self._topics:
            # Patterns are resolved by the client (`TopicWatch`), so the coordinator gets names and
            # an empty pattern.
            request.subscribed_topic_names, request.subscribed_topic_regex = list(self._topics), ""
        self._is_answering = tells_all or self._owes_owned
        if self._is_answering:
            request.topic_partitions = self._owned()
            self._telling = self.assignment
        # Before the answer: if none comes, `_try_again` forgets it.
        self._sent_topics = self._topics
        return request

    def _owned(self) -> list[wire.HeartbeatTopicPartitions]:
        numbers: dict[bytes, list[int]] = {}
        for topic, partition in sorted(self.assignment):
            numbers.setdefault(self._ids[topic], []).append(partition)
        return [
            wire.HeartbeatTopicPartitions(topic_id=topic_id, partitions=many)
            for topic_id, many in numbers.items()
        ]

    def _offer(self) -> None:
        """Offer the assigned partitions whose topic name is known."""
        if self._target is None:
            return
        known = {(self._names.get(topic_id), number) for topic_id, number in self._target}
        named = frozenset(
            TopicPartition(name, number) for name, number in known if name is not None
        )
        # While no name is known, there is nothing to offer; an empty assignment needs no names.
        if named or not self._target:
            self._offered = named if named != self.assignment or self._is_new else None
            self._is_new = False
        if all(topic_id in self._names for topic_id, _ in self._target):
            self._target = None

    def _refused(self, response: wire.ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        code = response.error_code
        is_gone = code == ErrorCode.GROUP_ID_NOT_FOUND and self.is_known
        if code in _FENCED or is_gone:
            self._lose(now_ms)
        elif code in _MOVED:
            self.on_coordinator_lost(now_ms)
        elif code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            self._try_again(now_ms + RETRY_BACKOFF_MS)
        elif code == ErrorCode.UNRELEASED_INSTANCE_ID and self._may_be_released(now_ms):
            self._try_again(now_ms + UNRELEASED_RETRY_MS)
        else:
            raise _refusal(response, self._settings.group_id)

    def _may_be_released(self, now_ms: int) -> bool:
        if self._unreleased_since_ms is None:
            self._unreleased_since_ms = now_ms
        return now_ms - self._unreleased_since_ms < UNRELEASED_TIMEOUT_MS

    def _try_again(self, at_ms: int) -> None:
        """Say everything in the next heartbeat, and drop an offer that was not taken over.

        A heartbeat with all owned partitions leaves out offered ones. So the coordinator may assign
        these to other members, in an answer that is lost:

        1. t-1 is offered to this member; its caller has not polled yet.
        2. A full heartbeat says that it owns t-0. The coordinator gives t-1 to another member.
        3. The answer is lost. If the caller now took over t-1, two members would read it.
        """
        self._confirmed_owned = self._sent_topics = None
        self._is_new = self._is_new or self._offered is not None
        self._offered = self._target = None
        self._not_before_ms = self._heartbeat_ms = at_ms
        if self.phase is MemberPhase.JOINING:
            self.phase = MemberPhase.UNJOINED

    def _lose(self, now_ms: int) -> None:
        """Handle being fenced: other members may own all partitions of this one."""
        self._forget()
        self.is_lost = bool(self.assignment)
        self.phase = MemberPhase.REVOKING if self.assignment else MemberPhase.UNJOINED
        # The pause keeps a coordinator that fences every attempt from being asked in a tight loop.
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS

    def _leave_unpolled(self) -> Action:
        """Leave the group, as the caller does not poll; it revokes with its next poll."""
        self.absence = self._patience.complaint
        request = self._farewell()
        self._forget()
        self._patience.start_over()
        self.is_lost = bool(self.assignment)
        self.phase = MemberPhase.REVOKING if self.assignment else MemberPhase.AWAY
        return Leave(request)

    def _forget(self) -> None:
        self.generation_id = JOINING_EPOCH
        self._target = self._offered = None
        self._is_new, self._is_unanswered = True, False
        self._confirmed_owned = self._sent_topics = None

    def _farewell(self, *, for_good: bool = False) -> wire.ConsumerGroupHeartbeatRequest | None:
        if self.phase is not MemberPhase.JOINING and not self.is_known:
            return None
        is_away = self._settings.instance_id is not None and not for_good
        return wire.ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group_id,
            member_id=self.member_id,
            member_epoch=AWAY_EPOCH if is_away else LEFT_EPOCH,
            instance_id=self._settings.instance_id,
            subscribed_topic_names=None,
            topic_partitions=None,
        )


def _held(topics: Sequence[wire.HeartbeatTopicPartitions]) -> Held:
    return frozenset((each.topic_id, number) for each in topics for number in each.partitions)


def _refusal(response: wire.ConsumerGroupHeartbeatResponse, group_id: str) -> LogError:
    detail = f"group {group_id}"
    if response.error_message:
        detail += f": {response.error_message}"
    if response.error_code == ErrorCode.UNRELEASED_INSTANCE_ID:
        detail += "; no two consumers of a group may have the same group_instance_id"
    return error_for(response.error_code, detail)
