"""Member: what a group of the classic protocol knows of one member, and what members agree on.

Pure values; `classic_group` decides. A member offers protocols (assignors), best first, each
with the bytes that the assignor wants to know; the group takes one that all of them speak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from streamlog.broker.coordinator.shard import Answer, Outcome
from streamlog.errors import CorruptData
from streamlog.protocol.codec import decode_versioned
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.coordination import (
    ConsumerProtocolSubscription,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberMetadata,
    SyncGroupResponse,
)

IN_PROCESS_HOST = "in-process"
"""The host of members that run in the broker's own process."""

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""What a member can speak, best first: name and subscription."""


@dataclass(slots=True, kw_only=True)
class Member:
    """What the group knows of one member."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    deadline_ms: int
    """When it is given up, unless it is heard of before."""
    assignment: bytes = b""
    join_ticket: int | None = None
    sync_ticket: int | None = None

    @property
    def waits_for_us(self) -> bool:
        """Its request is held here, so its silence says nothing."""
        return self.join_ticket is not None or self.sync_ticket is not None

    def heard_of(self, now_ms: int) -> None:
        """It is alive."""
        self.deadline_ms = now_ms + self.session_timeout_ms

    def offers(self, request: JoinGroupRequest) -> None:
        """Take over what a join says."""
        self.protocols = protocols_of(request)
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms(request)

    def subscription(self, protocol_name: str | None) -> bytes:
        """Its metadata for one protocol."""
        return dict(self.protocols).get(protocol_name or "", b"")

    def release(self, code: ErrorCode) -> Outcome:
        """Answer whatever the member waits for with `code`."""
        answers = []
        if self.join_ticket is not None:
            refused = JoinGroupResponse(error_code=code, protocol_name="", member_id=self.member_id)
            answers.append(Answer(self.join_ticket, refused))
        if self.sync_ticket is not None:
            answers.append(Answer(self.sync_ticket, SyncGroupResponse(error_code=code)))
        self.join_ticket = self.sync_ticket = None
        return Outcome(answers=tuple(answers))

    def stored(self, protocol_name: str | None, assignment: bytes) -> MemberMetadata:
        """What a record keeps of it."""
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.subscription(protocol_name),
            assignment=assignment,
        )


def restored(stored: MemberMetadata, protocol_name: str | None, now_ms: int) -> Member:
    """A member out of a record; from now on it has to be heard of."""
    # Who lived in the process of the broker before a restart died with it, and nobody has to
    # wait for its session to end.
    died = stored.client_host == IN_PROCESS_HOST
    return Member(
        member_id=stored.member_id,
        instance_id=stored.group_instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        session_timeout_ms=stored.session_timeout,
        rebalance_timeout_ms=stored.rebalance_timeout,
        protocols=((protocol_name or "", stored.subscription),),
        deadline_ms=now_ms + (0 if died else stored.session_timeout),
    )


def protocols_of(request: JoinGroupRequest) -> Protocols:
    """What a join offers."""
    return tuple((each.name, bytes(each.metadata)) for each in request.protocols)


def rebalance_timeout_ms(request: JoinGroupRequest) -> int:
    """How long the others wait for this member. Version 0 knows one timeout for both."""
    given_ms = request.rebalance_timeout_ms
    return given_ms if given_ms >= 0 else request.session_timeout_ms


def in_common(spoken: Iterable[Protocols]) -> set[str]:
    """The protocols that all speak."""
    return set.intersection(*({name for name, _ in protocols} for protocols in spoken))


def elect(spoken: list[Protocols]) -> str:
    """Each member votes for the first protocol it prefers among those that all speak."""
    common = in_common(spoken)
    votes = Counter(next(name for name, _ in each if name in common) for each in spoken)
    return votes.most_common(1)[0][0]


def subscribes(subscription: bytes, topic: str) -> bool:
    """Whether a consumer's subscription has a topic; one that can't be read may have any."""
    try:
        return topic in decode_versioned(ConsumerProtocolSubscription, subscription).topics
    except CorruptData:
        return True
