"""Members of a quorum, driven by hand: nothing happens on its own, and all effects are visible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from streamlog.broker.quorum.raft.raft_machine import Raft
from streamlog.broker.quorum.raft.raft_messages import (
    AppendEntries,
    BeginEpochRequest,
    Effect,
    EndEpochRequest,
    Entry,
    EpochResponse,
    FlushLog,
    InstallSnapshot,
    Persist,
    QuorumState,
    RaftFetchRequest,
    RaftFetchResponse,
    RaftSnapshotId,
    RaftVoteRequest,
    RaftVoteResponse,
    Reply,
    ReplyEntries,
    ReplySnapshot,
    Request,
    Response,
    SendMessage,
    SnapshotRequest,
    SnapshotResponse,
    TrimLog,
    WriteSnapshot,
)
from streamlog.broker.quorum.raft.raft_state import (
    CORRECT,
    EpochChain,
    RaftRole,
    RaftRules,
    Timeouts,
)
from streamlog.broker.replication.replica_state import Truncate
from streamlog.protocol.error_codes import ErrorCode
from streamlog.replace import replace

TIMEOUTS = Timeouts(
    election_ms=1_000,
    election_backoff_ms=1_000,
    fetch_ms=2_000,
    request_ms=500,
    retry_ms=20,
    wait_ms=500,
)


def describe(value: object) -> str:
    """Format a message or an effect in a few words."""
    match value:
        case Entry():
            return f"{value.base_offset}@{value.epoch}" + ("!" if value.is_control else "")
        case RaftSnapshotId():
            return f"snapshot {value.end_offset}@{value.epoch}"
        case tuple():
            return "[" + " ".join(describe(each) for each in value) + "]"
        case int() | str() | bytes() | None:
            return str(value)
    if not isinstance(value, msgspec.Struct):
        raise TypeError(value)
    shown = [
        f"{each.name}={_describe_field(each.name, getattr(value, each.name))}"
        for each in msgspec.structs.fields(type(value))
        if not any(getattr(value, each.name) is nothing for nothing in (None, False))
        and getattr(value, each.name) not in ((), b"", -1)
        and (each.name, getattr(value, each.name)) not in {("rejoin_id", 0), ("error_code", 0)}
    ]
    return " ".join([type(value).__name__, *shown])


def _describe_field(name: str, value: object) -> str:
    return ErrorCode(value).name if name == "error_code" else describe(value)


@dataclass(slots=True)
class Mail:
    """A message in flight."""

    sender: int
    receiver: int
    request_id: int
    content: Request | Response

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver} {describe(self.content)}"


@dataclass(slots=True)
class Member:
    """A Raft machine and its disk."""

    raft: Raft
    entries: list[Entry] = field(default_factory=list)
    synced: list[Entry] = field(default_factory=list)
    state: QuorumState = field(default_factory=QuorumState)
    flushing: FlushLog | None = None
    snapshots: dict[RaftSnapshotId, bytes] = field(default_factory=dict)
    partial: bytes = b""


class Cluster:
    """Voters and observers; the test controls time, syncs and mail."""

    def __init__(
        self,
        voters: int = 3,
        *,
        observers: int = 0,
        rules: RaftRules = CORRECT,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.now_ms = 0
        self.rules = rules
        self.say = say
        self.voters = tuple(range(voters))
        self.mail: list[Mail] = []
        self.tickets: dict[int, Mail] = {}
        self.members: list[Member] = []
        for node_id in range(voters + observers):
            member = Member(self._raft(node_id, QuorumState(), []))
            self.members.append(member)
            self.perform(node_id, member.raft.start(self.now_ms))

    def _raft(self, node_id: int, state: QuorumState, entries: list[Entry]) -> Raft:
        chain = EpochChain()
        chain.extend(entries)
        return Raft(
            node_id=node_id,
            voters=self.voters,
            state=state,
            chain=chain,
            draw=lambda _: 0,
            timeouts=TIMEOUTS,
            rules=self.rules,
        )

    def raft(self, node_id: int) -> Raft:
        return self.members[node_id].raft

    def restart(self, node_id: int) -> None:
        """Restart after a power cut: entries that were not synced are lost."""
        member = self.members[node_id]
        raft = self._raft(node_id, member.state, member.synced)
        self.members[node_id] = Member(raft, list(member.synced), list(member.synced), member.state)
        self.lose(node_id)
        self.perform(node_id, raft.start(self.now_ms))

    def tick(self, node_id: int, now_ms: int) -> None:
        self.now_ms = now_ms
        self.perform(node_id, self.raft(node_id).on_tick(now_ms))

    def append(self, node_id: int, payload: bytes, count: int = 1) -> None:
        raft = self.raft(node_id)
        self.perform(node_id, raft.append(payload, count=count, now_ms=self.now_ms))

    def sync(self, node_id: int) -> bool:
        """Complete the running sync; return whether there was one."""
        member = self.members[node_id]
        flush, member.flushing = member.flushing, None
        if flush is None:
            return False
        if flush.generation == member.raft.generation:
            member.synced = [e for e in member.entries if e.next_offset <= flush.end_offset]
        effects = member.raft.on_flushed(flush.generation, flush.end_offset, self.now_ms)
        self.perform(node_id, effects)
        return True

    def deliver(self, mail: Mail) -> None:
        self.say(str(mail))
        if mail in self.mail:
            self.mail.remove(mail)
        raft, content = self.raft(mail.receiver), mail.content
        if isinstance(content, Request):
            ticket = len(self.tickets) + 1
            self.tickets[ticket] = mail
            self.perform(mail.receiver, self._asked(raft, content, ticket))
        else:
            self.perform(mail.receiver, self._answered(raft, mail, content))

    def settle(self, *away: int) -> None:
        """Deliver mail and complete syncs until nothing is pending, except for nodes in `away`."""
        for _ in range(200):
            self.lose(*away)
            if self.mail:
                self.deliver(self.mail[0])
                continue
            here = [each for each in range(len(self.members)) if each not in away]
            due = [each for each in here if _is_due_now(self.raft(each), self.now_ms)]
            if due:
                self.tick(due[0], self.now_ms)
            elif not sum(self.sync(each) for each in here):
                return
        raise AssertionError("the members do not come to rest")

    def lose(self, *nodes: int) -> None:
        """Lose all mail from and to these nodes, and fail the requests that wait for it."""
        lost = [each for each in self.mail if {each.sender, each.receiver} & set(nodes)]
        self.mail = [each for each in self.mail if each not in lost]
        for each in lost:
            asker = each.sender if isinstance(each.content, Request) else each.receiver
            raft = self.raft(asker)
            self.perform(asker, raft.on_failed(each.request_id, self.now_ms))

    def elect(self, node_id: int, *away: int) -> None:
        """Let a member campaign, and let the cluster settle."""
        self.tick(node_id, self.now_ms + 3_000)
        self.settle(*away)
        assert self.raft(node_id).is_leader

    def _asked(self, raft: Raft, request: Request, ticket: int) -> list[Effect]:
        match request:
            case RaftVoteRequest():
                return raft.on_vote_request(request, ticket, self.now_ms)
            case BeginEpochRequest():
                return raft.on_begin_epoch(request, ticket, self.now_ms)
            case EndEpochRequest():
                return raft.on_end_epoch(request, ticket, self.now_ms)
            case RaftFetchRequest():
                return raft.on_fetch(request, ticket, self.now_ms)
            case SnapshotRequest():
                return raft.on_snapshot_request(request, ticket, self.now_ms)

    def _answered(self, raft: Raft, mail: Mail, response: Request | Response) -> list[Effect]:
        sender, request_id = mail.sender, mail.request_id
        match response:
            case RaftVoteResponse():
                return raft.on_vote_response(sender, request_id, response, self.now_ms)
            case EpochResponse():
                return raft.on_epoch_response(sender, request_id, response, self.now_ms)
            case RaftFetchResponse():
                return raft.on_fetched(sender, request_id, response, self.now_ms)
            case SnapshotResponse():
                return raft.on_snapshot_response(sender, request_id, response, self.now_ms)
        raise AssertionError(f"{response} is no response")

    def perform(self, node_id: int, effects: list[Effect]) -> None:
        for effect in effects:
            self._perform(node_id, effect)

    def _perform(self, node_id: int, effect: Effect) -> None:
        member = self.members[node_id]
        match effect:
            case SendMessage():
                self.mail.append(Mail(node_id, effect.to, effect.request_id, effect.request))
                return
            case Reply():
                self._reply(effect.ticket, effect.response)
                return
            case ReplyEntries():
                found = [e for e in member.entries if e.base_offset >= effect.offset]
                self._reply(effect.ticket, replace(effect.response, entries=tuple(found)))
                return
            case ReplySnapshot():
                self._reply_snapshot(member, effect)
                return
            case WriteSnapshot() | InstallSnapshot() | TrimLog():
                self._perform_on_snapshots(node_id, effect)
                return
        self._perform_on_log(node_id, effect)

    def _reply_snapshot(self, member: Member, effect: ReplySnapshot) -> None:
        data = member.snapshots[effect.snapshot]
        whole = replace(
            effect.response,
            size=len(data),
            position=effect.position,
            unaligned_records=data[effect.position : effect.position + 4],
        )
        self._reply(effect.ticket, whole)

    def _perform_on_log(self, node_id: int, effect: Effect) -> None:
        member = self.members[node_id]
        match effect:
            case Persist():
                member.state = effect.state
                self.say(f"{node_id} persists {describe(effect.state)}")
            case AppendEntries():
                member.entries += effect.entries
                self.say(f"{node_id} appends {describe(effect.entries)}")
            case FlushLog():
                member.flushing = effect
                self.say(f"{node_id} syncs up to {effect.end_offset}")
            case Truncate():
                member.entries = [e for e in member.entries if e.next_offset <= effect.offset]
                member.synced = [e for e in member.synced if e.next_offset <= effect.offset]
                self.say(f"{node_id} cuts off at {effect.offset}")
            case _:
                self.say(f"{node_id} {describe(effect)}")

    def _perform_on_snapshots(
        self, node_id: int, effect: WriteSnapshot | InstallSnapshot | TrimLog
    ) -> None:
        member = self.members[node_id]
        match effect:
            case TrimLog():
                start = effect.snapshot.end_offset
                member.entries = [e for e in member.entries if e.base_offset >= start]
                member.synced = [e for e in member.synced if e.base_offset >= start]
                self.say(f"{node_id} begins at {describe(effect.snapshot)}")
            case WriteSnapshot():
                member.partial = (member.partial if effect.position else b"") + effect.data
            case InstallSnapshot():
                self.say(f"{node_id} installs {describe(effect.snapshot)}")
                member.snapshots[effect.snapshot] = member.partial
                member.entries, member.synced = [], []
                self.perform(node_id, member.raft.on_installed(effect.snapshot, self.now_ms))

    def _reply(self, ticket: int, response: Response) -> None:
        asked = self.tickets[ticket]
        self.mail.append(Mail(asked.receiver, asked.sender, asked.request_id, response))


def _is_due_now(raft: Raft, now_ms: int) -> bool:
    deadline_ms = raft.next_deadline_ms()
    return raft.role is RaftRole.FOLLOWER and deadline_ms is not None and deadline_ms <= now_ms
