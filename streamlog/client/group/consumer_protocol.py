"""ConsumerMember: one member of a group whose coordinator assigns (KIP-848).

Pure, with the same two sides as `membership`: `next` says which request is due, `on_heartbeat`
takes the answer; the owner takes over what is `offered`, after it has given up what is `revoking`.
There are no rounds: every heartbeat says what is new (topics, partitions that are owned), the
answer may bring another assignment and another epoch. What has been given up is told at once, since
others wait for it. After doubt (a lost answer, another coordinator) the next heartbeat tells all.
A fenced member has lost all and joins again, under the id that it has made for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

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
"""Partitions by topic id and number, as the coordinator names them."""

JOINING_EPOCH: Final = 0
LEFT_EPOCH: Final = -1
AWAY_EPOCH: Final = -2
"""Of a static member that leaves and will be back."""
UNRELEASED_RETRY_MS: Final = 1_000
UNRELEASED_TIMEOUT_MS: Final = 60_000
"""How long the place of a static member may be another process's: one that was killed is given up
by its session timeout, which is less."""
NAMES_RETRY_MS: Final = 1_000
"""Before a topic is looked up again whose id nobody knew."""
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this; the answer goes to `on_heartbeat`."""

    request: wire.ConsumerGroupHeartbeatRequest


@dataclass(frozen=True, slots=True)
class NameTopics:
    """Look up the ids of the topics that are read; the answer goes to `on_names`."""


Action: TypeAlias = Tell | NameTopics | Leave | WaitForGroup


class ConsumerMember:
    """The member's side of the group protocol.

    `assignment` is what the owner may read; it changes only in `on_assigned` and `on_revoked`,
    both called by the owner.
    """

    is_leader: Final = False
    """Nobody leads here."""
    read_together: Final[frozenset[str]] = frozenset()
    """What others read is the coordinator's business."""

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
        """What the coordinator has assigned; None if the owner has been offered all of it."""
        self._offered: frozenset[TopicPartition] | None = None
        self._is_new = True
        """Nothing has been offered since it has joined."""
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self._told_topics: tuple[str, ...] | None = None
        self._told_owned: frozenset[TopicPartition] | None = None
        """What the coordinator knows that it is so; None if that is in doubt."""
        self._telling: frozenset[TopicPartition] = frozenset()
        self._is_unanswered = False
        """An assignment has come, and the coordinator waits to hear what is owned by it: it may
        have asked for something back that the owner has never had."""
        self._is_answering = False
        self._interval_ms = settings.heartbeat_interval_ms
        self._not_before_ms = 0
        self._heartbeat_ms = 0
        self._names_ms = 0
        self._asked_ms = self._heard_ms = 0
        self._unreleased_since_ms: int | None = None

    def next(self, now_ms: int) -> Action:
        """What is due now."""
        if (
            self.phase not in {MemberPhase.AWAY, MemberPhase.LEFT}
            and now_ms >= self._patience.ends_ms
        ):
            return self._step_aside()
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
        """What the owner has subscribed to."""
        return self._topics

    @property
    def offered(self) -> frozenset[TopicPartition] | None:
        """A new part that the owner has not taken over yet."""
        return self._offered

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """What the owner has to give up now."""
        if self.phase is MemberPhase.REVOKING:
            return self.assignment
        return frozenset() if self._offered is None else self.assignment - self._offered

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has taken it in."""
        return self.generation_id != JOINING_EPOCH

    @property
    def may_commit(self) -> bool:
        """Whether the coordinator takes commits by the epoch."""
        return self.phase in {MemberPhase.STABLE, MemberPhase.REVOKING}

    def is_current(self, now_ms: int) -> bool:
        """Whether the coordinator has answered within the session; see `GroupMember`."""
        return now_ms - self._heard_ms < self._settings.session_timeout_ms

    def on_heartbeat(self, response: wire.ConsumerGroupHeartbeatResponse, now_ms: int) -> None:
        """The coordinator is content, or not.

        Raises:
            LogError: it refuses the member for good.
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
            self._told_owned, self._is_unanswered = self._telling, False
        self._heard_ms = self._asked_ms
        self._interval_ms = response.heartbeat_interval_ms
        self._heartbeat_ms = self._not_before_ms = now_ms
        if self.is_current(now_ms):
            self._heartbeat_ms += self._interval_ms
        if response.assignment is not None:
            self._is_unanswered = True
            self._target = _held(response.assignment.topic_partitions)
            self._names_ms = now_ms
            self._offer()

    def on_names(self, names: Mapping[bytes, str], now_ms: int) -> None:
        """These topics there are; what is assigned of others has to wait."""
        self._names |= names
        self._ids |= {name: topic_id for topic_id, name in names.items()}
        self._names_ms = now_ms + NAMES_RETRY_MS
        self._offer()

    def on_coordinator_lost(self, now_ms: int) -> None:
        """A request got no answer, so what it said may be known or not."""
        self.coordinator_lost = True
        self._try_again(now_ms + RETRY_BACKOFF_MS)

    def on_coordinator_found(self) -> None:
        """Requests can be sent."""
        self.coordinator_lost = False

    def on_poll(self, now_ms: int, *, waits: bool) -> None:
        """The owner polls; from now on its time runs, unless it `waits` for what comes."""
        self._patience.on_poll(now_ms, waits=waits)
        if self.phase is MemberPhase.AWAY:
            self.phase = MemberPhase.UNJOINED

    def on_assigned(self, now_ms: int) -> frozenset[TopicPartition]:  # noqa: ARG002 - as `GroupMember`
        """The owner takes over what is `offered`; returned is what it has not had before."""
        offered = self._offered or frozenset()
        added, self._offered = offered - self.assignment, None
        self.assignment = offered
        return added

    def on_revoked(self, partitions: frozenset[TopicPartition], now_ms: int) -> None:
        """The owner is done with what it was to give up (`revoking`)."""
        self.assignment -= partitions
        if self.phase is MemberPhase.REVOKING:
            self.is_lost = False
            self.phase, self._not_before_ms = MemberPhase.UNJOINED, now_ms

    def on_subscription(self, topics: Sequence[str]) -> None:
        """The owner wants other topics; the next heartbeat, which is due now, tells it."""
        self._topics = tuple(sorted(set(topics)))

    def on_request(self) -> None:
        """There are no rounds to ask for: the coordinator assigns whenever something changes."""

    def on_counts(self, partitions: Mapping[str, int]) -> None:
        """How many partitions topics have is for the coordinator to see."""

    def leave(self, *, for_good: bool = False) -> wire.ConsumerGroupHeartbeatRequest | None:
        """The member is done; the request tells the coordinator, if it knows of it.

        A static member tells that it will be back, unless it goes `for_good`.
        """
        request = self._farewell(for_good=for_good)
        self.phase, self._offered = MemberPhase.LEFT, None
        return request

    def __str__(self) -> str:
        return (
            f"member {self.member_id} of group {self._settings.group_id}: "
            f"{self.phase.name.lower()}, epoch {self.generation_id}, "
            f"{len(self.assignment)} partitions"
        )

    @property
    def _names_due_ms(self) -> float:
        return inf if self._target is None else self._names_ms

    @property
    def _owes_owned(self) -> bool:
        """Whether the coordinator is to hear what is owned; see `_try_again`."""
        is_told = self._told_owned == self.assignment and not self._is_unanswered
        return self._offered is None and not is_told

    @property
    def _beat_due_ms(self) -> int:
        """At once if there is news: others may wait for what is given up."""
        has_news = self._told_topics != self._topics or self._owes_owned
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
        tells_all = joins or self._told_owned is None
        if tells_all:
            request.rebalance_timeout_ms = settings.rebalance_timeout_ms
            request.server_assignor = settings.remote_assignor
        if tells_all or self._told_topics != self._topics:
            # No pattern of the coordinator's kind: the owner's are looked after here.
            request.subscribed_topic_names, request.subscribed_topic_regex = list(self._topics), ""
        self._is_answering = tells_all or self._owes_owned
        if self._is_answering:
            request.topic_partitions = self._owned()
            self._telling = self.assignment
        self._told_topics = self._topics
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
        """Offer what is assigned and has a name by now."""
        if self._target is None:
            return
        known = {(self._names.get(topic_id), number) for topic_id, number in self._target}
        named = frozenset(
            TopicPartition(name, number) for name, number in known if name is not None
        )
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
        """Tell everything, and take nothing over before it is answered.

        Who says what it owns says that it does not own what it is only offered: the coordinator
        may have given that to others in the answer that was lost.
        """
        self._told_owned = self._told_topics = None
        self._is_new = self._is_new or self._offered is not None
        self._offered = self._target = None
        self._not_before_ms = self._heartbeat_ms = at_ms
        if self.phase is MemberPhase.JOINING:
            self.phase = MemberPhase.UNJOINED

    def _lose(self, now_ms: int) -> None:
        """The group counts on this member no more: all it had is another's."""
        self._forget()
        self.is_lost = bool(self.assignment)
        self.phase = MemberPhase.REVOKING if self.assignment else MemberPhase.UNJOINED
        # A coordinator that fences again and again is not asked in a tight loop.
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS

    def _step_aside(self) -> Action:
        """Leave what others can read meanwhile; the owner gives it up when it is back."""
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
        self._told_owned = self._told_topics = None

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
