"""The quorum's level: `Raft` as it is shipped, on disks, a network and clocks that fail.

One seed is one life of a cluster of 1, 3 or 5 voters and some observers: crashes with torn tails,
power cuts in the middle of a step, pauses, partitions (also one-way), lost, late and doubled
messages, slow syncs, snapshots, wiped disks. After `DURATION_MS` everything is healed, and then
the quorum has to get on within `PATIENCE_MS` (L1). What must hold is `quorum_checker`'s.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from zlib import crc32

from simulation.life import Life
from simulation.quorum_checker import Log, QuorumChecker, Violation
from streamlog.broker.quorum.raft.raft_machine import Raft
from streamlog.broker.quorum.raft.raft_messages import (
    EMPTY,
    AppendEntries,
    BecomeLeader,
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
from streamlog.broker.replication.replica_state import (
    AdvanceHighWatermark,
    StopReplica,
    Truncate,
)
from streamlog.protocol.error_codes import ErrorCode

DURATION_MS = 15_000
"""Of the part with faults."""
PATIENCE_MS = 30_000
"""For everything to work again once all is healed."""
TIMEOUTS = Timeouts(
    election_ms=300,
    election_backoff_ms=300,
    fetch_ms=600,
    request_ms=150,
    retry_ms=20,
    wait_ms=100,
)
STORY_LINES = 200


@dataclass(slots=True)
class Disk:
    """What a crash leaves."""

    state: QuorumState = field(default_factory=QuorumState)
    entries: list[Entry] = field(default_factory=list)
    start: RaftSnapshotId = EMPTY
    synced_end: int = 0
    snapshots: dict[RaftSnapshotId, bytes] = field(default_factory=dict)
    partial: bytearray = field(default_factory=bytearray)

    @property
    def end_offset(self) -> int:
        """Of the log."""
        return self.entries[-1].next_offset if self.entries else self.start.end_offset

    def truncate(self, end_offset: int) -> None:
        """Cut the log off."""
        while self.entries and self.entries[-1].next_offset > end_offset:
            self.entries.pop()
        self.synced_end = min(self.synced_end, end_offset)

    def between(self, first: int, end: int) -> list[Entry]:
        """The entries from `first` to before `end`."""
        found: list[Entry] = []
        for entry in reversed(self.entries):
            if entry.base_offset < first:
                break
            if entry.next_offset <= end:
                found.append(entry)
        return found[::-1]


class Node:
    """A member: `Raft` and the shell that performs what it decides."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world = world
        self.node_id = node_id
        self.disk = Disk()
        self.is_up = False
        self.life = 0
        self.raft: Raft
        self.waiting: deque[Entry] = deque()
        self._wake_ms: int | None = None
        self._pending: dict[int, int] = {}
        self._tickets: dict[int, Callable[[Response], None]] = {}
        self._ballots: dict[int, RaftVoteRequest] = {}
        self._next_ticket = count(1)
        self.applied = 0
        self.image = 0

    # ---- life ----

    def start(self) -> None:
        """Begin with what is on the disk."""
        world = self.world
        chain = EpochChain(self.disk.start)
        chain.extend(self.disk.entries)
        state = self.disk.state
        if world.rules.vote_not_persisted:
            state = QuorumState(epoch=chain.last_epoch)
        self.is_up = True
        self.life += 1
        self.waiting.clear()
        self._pending.clear()
        self._tickets.clear()
        self._wake_ms = None
        self.raft = Raft(
            node_id=self.node_id,
            voters=world.voters,
            state=state,
            chain=chain,
            draw=world.rng.randrange,
            timeouts=TIMEOUTS,
            rules=world.rules,
        )
        self.applied = self.raft.chain.start.end_offset
        self.image = int(self.disk.snapshots[self.disk.start]) if self.applied else 0
        self.perform(self.raft.start(world.now_ms))

    def crash(self, *, keep_all: bool = False) -> None:
        """Die; of what was not synced some is left."""
        self.is_up = False
        disk = self.disk
        if not keep_all:
            unsynced = [each for each in disk.entries if each.next_offset > disk.synced_end]
            kept = self.world.rng.randint(0, len(unsynced))
            disk.truncate(unsynced[kept - 1].next_offset if kept else disk.synced_end)
        disk.synced_end = disk.end_offset  # the opener syncs what it has found

    def perform(self, effects: list[Effect]) -> None:
        """Do what was decided, in order, unless the power fails in between."""
        world = self.world
        life = self.life
        for effect in effects:
            if not self.is_up or self.life != life:
                return
            if world.breaks_step() and self.is_up:
                world.note(self.node_id, "power cut in a step, before", effect)
                world.crash(self)
                return
            world.note(self.node_id, "", effect)
            self._perform(effect)
        if self.is_up and self.life == life:
            self._schedule()

    def _schedule(self) -> None:
        deadline_ms = self.raft.next_deadline_ms()
        if deadline_ms is None or (self._wake_ms is not None and self._wake_ms <= deadline_ms):
            return
        self._wake_ms = max(deadline_ms, self.world.now_ms)
        self.world.later(self, self._wake_ms - self.world.now_ms, self._wake)

    def _wake(self) -> None:
        self._wake_ms = None
        self.perform(self.raft.on_tick(self.world.now_ms))

    # ---- effects ----

    def _perform(self, effect: Effect) -> None:
        match effect:
            case SendMessage():
                self._send(effect)
            case Reply():
                self._reply(effect.ticket, effect.response)
            case ReplyEntries():
                self._reply_entries(effect)
            case ReplySnapshot():
                self._reply_snapshot(effect)
            case AdvanceHighWatermark():
                self._commit(effect.offset)
            case BecomeLeader():
                self.waiting.clear()
                self.world.counts["elections"] += 1
                self.world.checker.leader(self.log(), effect.epoch)
            case StopReplica():
                raise Violation(f"Q5: {self.node_id} halts: {effect.reason}")
            case _:
                self._perform_on_disk(effect)

    def _perform_on_disk(self, effect: Effect) -> None:
        disk = self.disk
        match effect:
            case Persist():
                disk.state = effect.state
                self._check_state(effect.state)
            case AppendEntries():
                disk.entries.extend(effect.entries)
            case FlushLog():
                self._flush(effect)
            case Truncate():
                self.world.counts["truncations"] += 1
                self.world.checker.truncate(self.node_id, effect.offset, self.raft.high_watermark)
                disk.truncate(effect.offset)
            case _:
                self._perform_on_snapshots(effect)

    def _perform_on_snapshots(self, effect: Effect) -> None:
        disk = self.disk
        match effect:
            case WriteSnapshot():
                if effect.position == 0:
                    disk.partial.clear()
                disk.partial += effect.data
            case InstallSnapshot():
                self.world.later(self, 1, lambda: self._install(effect.snapshot))
            case TrimLog():
                disk.entries = [
                    each for each in disk.entries if each.base_offset >= effect.snapshot.end_offset
                ]
                disk.start = effect.snapshot
            case _:
                pass

    def _check_state(self, state: QuorumState) -> None:
        checker = self.world.checker
        checker.state(self.node_id, state.epoch)
        if not state.rejoin_id:
            self.world.lost.pop(self.node_id, None)
        if state.voted_id == self.node_id:
            checker.vote(self.node_id, state.epoch, self.node_id)

    def _flush(self, flush: FlushLog) -> None:
        end_offset = self.disk.end_offset
        cuts = self.raft.generation

        def done() -> None:
            # What the system call made durable is what was there when it began.
            if self.raft.generation == cuts:
                self.disk.synced_end = max(self.disk.synced_end, end_offset)
            else:
                self.world.counts["syncs across a cut"] += 1
            self.perform(
                self.raft.on_flushed(flush.generation, flush.end_offset, self.world.now_ms)
            )

        self.world.later(self, self.world.sync_ms(), done)

    def _install(self, snapshot: RaftSnapshotId) -> None:
        disk = self.disk
        self.world.counts["snapshots installed"] += 1
        disk.snapshots = {snapshot: bytes(disk.partial)}
        disk.entries.clear()
        disk.start = snapshot
        disk.synced_end = snapshot.end_offset
        self.applied = snapshot.end_offset
        self.image = int(disk.snapshots[snapshot])
        self.world.checker.image(self.node_id, self.applied, self.image)
        self.perform(self.raft.on_installed(snapshot, self.world.now_ms))

    def _commit(self, high_watermark: int) -> None:
        world = self.world
        entries = self.disk.between(self.applied, high_watermark)
        world.checker.high_watermark(self.node_id, self.applied, high_watermark)
        if self.raft.is_leader:
            world.checker.commit_as_leader(
                entries, self.raft.epoch, (each.log() for each in world.nodes), world.lost
            )
        world.checker.commit(entries)
        for entry in entries:
            self.image = crc32(entry.payload, self.image + entry.epoch) & 0xFFFFFFFF
            self.applied = entry.next_offset
        if self.applied == high_watermark:
            world.checker.image(self.node_id, self.applied, self.image)
        while self.raft.is_leader and self.waiting:
            entry = self.waiting[0]
            if entry.next_offset > high_watermark:
                break
            self.waiting.popleft()
            world.checker.ack(entry)
        if world.rng.random() < world.snapshot_rate:
            world.later(self, 0, self._snapshot)

    def _snapshot(self) -> None:
        """Write down what the records amount to; the log begins at the one before."""
        disk = self.disk
        snapshot = RaftSnapshotId(self.applied, self.raft.chain.epoch_at(self.applied))
        if snapshot.end_offset <= disk.start.end_offset:
            return
        self.world.counts["snapshots"] += 1
        disk.snapshots[snapshot] = str(self.image).zfill(self.world.rng.randint(12, 40)).encode()
        keep = sorted(disk.snapshots)[-2:]
        to = keep[0] if self.world.rng.random() < 0.5 else snapshot
        self.perform(self.raft.trim(to))
        if self.is_up:
            start = self.raft.chain.start
            disk.snapshots = {key: disk.snapshots[key] for key in disk.snapshots if key >= start}

    def log(self) -> Log:
        """As the checker sees it."""
        disk = self.disk
        return Log(self.node_id, disk.start.end_offset, disk.entries, disk.synced_end)

    # ---- messages ----

    def _send(self, send: SendMessage) -> None:
        world = self.world
        life = self.life
        self._pending[send.request_id] = send.to

        def answered(response: Response) -> None:
            def arrive() -> None:
                if self.life == life and self.is_up:
                    self._pending.pop(send.request_id, None)
                    self._on_response(send, response)

            world.carry(send.to, self.node_id, arrive)

        def failed() -> None:
            if self._pending.pop(send.request_id, None) is not None:
                self.perform(self.raft.on_failed(send.request_id, world.now_ms))

        target = world.nodes[send.to]
        world.carry(self.node_id, send.to, lambda: target.on_request(send.request, answered))
        world.later(self, TIMEOUTS.request_ms, failed)

    def on_request(self, request: Request, answered: Callable[[Response], None]) -> None:
        """Another node asks."""
        ticket = next(self._next_ticket)
        self._tickets[ticket] = answered
        now_ms = self.world.now_ms
        raft = self.raft
        match request:
            case RaftVoteRequest():
                effects = raft.on_vote_request(request, ticket, now_ms)
                self._ballots[ticket] = request
            case BeginEpochRequest():
                effects = raft.on_begin_epoch(request, ticket, now_ms)
            case EndEpochRequest():
                effects = raft.on_end_epoch(request, ticket, now_ms)
            case RaftFetchRequest():
                effects = raft.on_fetch(request, ticket, now_ms)
            case SnapshotRequest():
                effects = raft.on_snapshot_request(request, ticket, now_ms)
        self.perform(effects)

    def _on_response(self, send: SendMessage, response: Response) -> None:
        raft, now_ms = self.raft, self.world.now_ms
        match response:
            case RaftVoteResponse():
                effects = raft.on_vote_response(send.to, send.request_id, response, now_ms)
            case EpochResponse():
                effects = raft.on_epoch_response(send.to, send.request_id, response, now_ms)
            case RaftFetchResponse():
                effects = raft.on_fetched(send.to, send.request_id, response, now_ms)
            case SnapshotResponse():
                effects = raft.on_snapshot_response(send.to, send.request_id, response, now_ms)
        self.perform(effects)

    def _reply(self, ticket: int, response: Response) -> None:
        match response, self._ballots.pop(ticket, None):
            case RaftVoteResponse(vote_granted=True), RaftVoteRequest(pre_vote=False) as ballot:
                self.world.checker.vote(self.node_id, ballot.candidate_epoch, ballot.candidate_id)
        self._tickets.pop(ticket)(response)

    def _reply_entries(self, reply: ReplyEntries) -> None:
        entries = self.disk.between(reply.offset, self.disk.end_offset)[: self.world.batch]
        told = reply.response
        self._reply(
            reply.ticket,
            RaftFetchResponse(
                leader_epoch=told.leader_epoch,
                leader_id=told.leader_id,
                high_watermark=told.high_watermark,
                entries=tuple(entries),
                rejoined=told.rejoined,
            ),
        )

    def _reply_snapshot(self, reply: ReplySnapshot) -> None:
        told = reply.response
        data = self.disk.snapshots.get(reply.snapshot)
        self._reply(
            reply.ticket,
            SnapshotResponse(
                leader_epoch=told.leader_epoch,
                leader_id=told.leader_id,
                error_code=ErrorCode.SNAPSHOT_NOT_FOUND if data is None else ErrorCode.NONE,
                snapshot_id=reply.snapshot,
                size=len(data or b""),
                position=reply.position,
                unaligned_records=(data or b"")[reply.position : reply.position + 7],
            ),
        )


class World:
    """One life of one cluster."""

    def __init__(self, seed: int, rules: RaftRules = CORRECT) -> None:
        rng = self.rng = Random(seed)
        self.rules = rules
        self.now_ms = 0
        self.events = 0
        self.trace = 0
        self.counts: Counter[str] = Counter()
        self.story: deque[tuple[int, int, str, object]] = deque(maxlen=STORY_LINES)
        voters = rng.choice([1, 3, 3, 3, 5])
        self.voters = tuple(range(voters))
        self.sync_ms_max = rng.choice([2, 20, 120])
        self.batch = rng.choice([1, 3, 50])
        self.drop = rng.choice([0, 0.02, 0.15])
        self.double = rng.choice([0, 0.05])
        self.delay_ms_max = rng.choice([5, 40, 400, 1500])
        self.step_cut = rng.choice([0, 0, 0.0005, 0.005])
        self.snapshot_rate = rng.choice([0, 0, 0.02, 0.2])
        self.weights = {
            "crash": rng.choice([0.3, 1, 3]),
            "part": rng.choice([0, 1, 3]),
            "join": 1.5,
            "pause": 0.5,
            "wipe": rng.choice([0, 0.3]) if voters > 1 else 0,
            "leave": 0.2,
            "nothing": 2,
        }
        self.quick = rng.choice([0.2, 0.8])
        self.cut: set[tuple[int, int]] = set()
        self.paused: dict[int, list[Callable[[], None]]] = {}
        self.lost: dict[int, int] = {}
        """What wiped voters had on their disks, until they are in again."""
        self.is_healed = False
        self.checker = QuorumChecker(self.voters)
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = count()
        self._payload = count()
        self.nodes = [Node(self, each) for each in range(voters + rng.choice([0, 0, 1, 2]))]
        self._at(10, self._load)
        self._at(200, self._break_something)

    def start(self) -> None:
        """Switch all nodes on."""
        for node in self.nodes:
            node.start()

    def told(self) -> tuple[str, ...]:
        """What has happened last, a line each, and how everybody is."""
        lines = [f"{at:6} {node}: {what} {detail}" for at, node, what, detail in self.story]
        return (*lines, *(each.raft.describe() for each in self.nodes if each.life))

    # ---- time ----

    def _at(self, at_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._serial), what))

    def later(self, node: Node, delay_ms: int, what: Callable[[], None]) -> None:
        """Have a live node do something, unless it dies before."""
        life = node.life

        def due() -> None:
            if not node.is_up or node.life != life:
                return
            if node.node_id in self.paused:
                self.paused[node.node_id].append(due)
            else:
                what()

        self._at(self.now_ms + delay_ms, due)

    def carry(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        """Bring a message; it may be lost, late, or come twice."""
        rng = self.rng
        if not self.is_healed and rng.random() < self.drop:
            return
        twice = not self.is_healed and rng.random() < self.double
        for _ in range(2 if twice else 1):
            fast = self.is_healed or rng.random() < 0.7
            delay_ms = 1 if fast else rng.randint(1, self.delay_ms_max)
            self._at(self.now_ms + delay_ms, lambda: self._arrive(sender, receiver, arrive))

    def _arrive(self, sender: int, receiver: int, arrive: Callable[[], None]) -> None:
        node = self.nodes[receiver]
        if (sender, receiver) in self.cut or not node.is_up:
            return
        if receiver in self.paused:
            life = node.life
            self.paused[receiver].append(
                lambda: arrive() if node.is_up and node.life == life else None
            )
        else:
            arrive()

    def sync_ms(self) -> int:
        """How long a sync takes."""
        return self.rng.randint(1, self.sync_ms_max)

    def note(self, node_id: int, what: str, detail: object) -> None:
        """For the story."""
        self.story.append((self.now_ms, node_id, what, detail))
        step = f"{self.now_ms} {node_id} {what} {type(detail).__name__}"
        self.trace = crc32(step.encode(), self.trace)

    # ---- load and faults ----

    def _load(self) -> None:
        rng = self.rng
        leaders = [
            node
            for node in self.nodes
            if node.is_up and node.raft.is_leader and node.node_id not in self.paused
        ]
        if leaders:
            node = rng.choice(leaders)
            entry = Entry(
                base_offset=node.raft.end_offset,
                count=rng.choice([1, 1, 3]),
                epoch=node.raft.epoch,
                payload=b"%d" % next(self._payload),
            )
            node.waiting.append(entry)
            node.perform(node.raft.append(entry.payload, count=entry.count, now_ms=self.now_ms))
        self._at(self.now_ms + rng.randint(5, 60), self._load)

    def breaks_step(self) -> bool:
        """Whether the power fails between two effects of one step."""
        return self.step_cut > 0 and not self.is_healed and self.rng.random() < self.step_cut

    def crash(self, node: Node) -> None:
        """Kill a node, or cut its power; it comes back."""
        rng = self.rng
        self.counts["crashes"] += 1
        self.paused.pop(node.node_id, None)
        node.crash(keep_all=rng.random() < 0.3)
        delay_ms = rng.randint(1, 40) if rng.random() < self.quick else rng.randint(200, 2500)
        self._at(self.now_ms + delay_ms, lambda: None if node.is_up else node.start())

    def _break_something(self) -> None:
        if self.now_ms > DURATION_MS:
            self.is_healed = True
            self.cut.clear()
            for node_id in list(self.paused):
                self._resume(node_id)
            return
        rng = self.rng
        node = rng.choice(self.nodes)
        kind = rng.choices(list(self.weights), list(self.weights.values()))[0]
        self.note(node.node_id, kind, "")
        match kind:
            case "crash" if node.is_up:
                self.crash(node)
            case "part":
                self._part(node.node_id)
            case "join":
                self.cut.clear()
            case "pause" if node.is_up and node.node_id not in self.paused:
                self.counts["pauses"] += 1
                self.paused[node.node_id] = []
                until_ms = self.now_ms + rng.choice([60, 900, 2500])
                self._at(until_ms, lambda: self._resume(node.node_id))
            case "wipe":
                self._wipe(node)
            case "leave" if node.is_up and node.node_id not in self.paused:
                node.perform(node.raft.resign(self.now_ms))
            case _:
                pass
        self._at(self.now_ms + rng.randint(20, 500), self._break_something)

    def _part(self, node_id: int) -> None:
        self.counts["partitions"] += 1
        rng = self.rng
        for other in range(len(self.nodes)):
            if other == node_id:
                continue
            there, back = (node_id, other), (other, node_id)
            if rng.random() < 0.6:
                self.cut |= {there, back}
            else:
                self.cut.add(rng.choice([there, back]))

    def _wipe(self, node: Node) -> None:
        """Its disk is replaced, or found to be damaged; never two at a time."""
        if self.lost or any(each.disk.state.rejoin_id for each in self.nodes):
            return
        self.counts["wipes"] += 1
        if node.is_up:
            self.crash(node)
        disk = node.disk
        rejoin_id = self.rng.randint(1, 1 << 40)
        if node.node_id in self.voters:
            self.lost[node.node_id] = disk.synced_end
        else:
            rejoin_id = 0  # it has confirmed nothing that it could have forgotten
        if self.rng.random() < 0.5:
            state = QuorumState(rejoin_id=rejoin_id)
            node.disk = Disk(state=state)
            self.checker.forget_epoch(node.node_id)
        else:
            disk.state = QuorumState(
                epoch=disk.state.epoch, voted_id=disk.state.voted_id, rejoin_id=rejoin_id
            )
            disk.truncate(self.rng.randint(disk.start.end_offset, disk.end_offset))
            disk.synced_end = disk.end_offset

    def _resume(self, node_id: int) -> None:
        for what in self.paused.pop(node_id, []):
            what()

    # ---- a life ----

    def run(self) -> None:
        """Live it.

        Raises:
            Violation: what must not happen has happened.
        """
        goal: int | None = None
        healed_ms = 0
        while self._queue:
            self.now_ms, _, what = heapq.heappop(self._queue)
            self.events += 1
            what()
            if not self.is_healed:
                continue
            if goal is None:
                goal, healed_ms = self.checker.committed_end + 10, self.now_ms
            if self._is_well(goal):
                return
            if self.now_ms - healed_ms > PATIENCE_MS:
                states = "; ".join(each.raft.describe() for each in self.nodes if each.is_up)
                raise Violation(f"L1: not well {PATIENCE_MS} ms after all was healed: {states}")

    def _is_well(self, goal: int) -> bool:
        return all(
            node.is_up
            and node.raft.high_watermark >= goal
            and not node.raft.is_rejoining
            and node.raft.role in {RaftRole.LEADER, RaftRole.FOLLOWER}
            for node in self.nodes
        )


def simulate(seed: int, rules: RaftRules = CORRECT) -> Life:
    """One life."""
    world = World(seed, rules)
    violations: tuple[str, ...] = ()
    try:
        world.start()
        world.run()
    except Violation as violation:
        violations = (str(violation),)
    return Life(
        seed=seed,
        events=world.events,
        counts={**world.counts, "acknowledged": world.checker.acked},
        violations=violations,
        trace=f"{world.trace:08x}",
        story=world.told() if violations else (),
    )
