"""HerderGroup: several herders over one configs topic in memory, with rounds that a test calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from streamlog.connect.herding.configs import TASK_PARTS, ConfigRecord
from streamlog.connect.herding.herder import ConnectorType, Herder
from streamlog.connect.herding.herder_requests import (
    AskRound,
    ConnectorSlot,
    Discover,
    Effect,
    LevelChanged,
    PauseTask,
    Request,
    RequestAnswer,
    StartTask,
    StopTask,
    Write,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import ConnectorState
from streamlog.connect.herding.own_tasks import RESTART_WAITS
from streamlog.connect.herding.statuses import status_record

SOURCE = {"connector.class": "Source", "tasks.max": "2", "name": "x"}
SINK = {"connector.class": "Sink", "tasks.max": "3", "name": "y"}
PARTS = [{"p": each} for each in "abcde"]


class PluginsOfTests:
    """`Source` and `Sink` are installed; a setting `bad` is a fault."""

    def kind(self, settings: Mapping[str, str]) -> ConnectorType:
        found: dict[str, ConnectorType] = {"Source": "source", "Sink": "sink"}
        return found.get(settings.get("connector.class", ""), "unknown")

    def faults(self, settings: Mapping[str, str]) -> Sequence[str]:
        return ["Invalid value for bad"] if "bad" in settings else []


@dataclass
class Member:
    herder: Herder
    position: int = 0
    running: dict[ConnectorSlot, tuple[Mapping[str, str], bool]] = field(default_factory=dict)
    """What the shell runs: the settings, and whether it is paused."""
    slots: set[ConnectorSlot] = field(default_factory=set)


class HerderGroup:
    """Members, the topics, and what the members' shells did."""

    def __init__(
        self, names: Sequence[str], parts: Mapping[str, Sequence[Mapping[str, str]]]
    ) -> None:
        self.members = {name: Member(Herder(name, PluginsOfTests())) for name in names}
        self.parts = dict(parts)
        self.log: list[ConfigRecord | None] = []
        """The configs topic; None at the offsets of records that compaction has removed."""
        self.answers: dict[int, RequestAnswer] = {}
        self.levels: dict[str, dict[str, str]] = {}
        """The levels of loggers that each member has set."""
        self.wants_round = False
        self.discoveries: list[tuple[str, Discover]] = []
        self.now_ms = 0
        self.generation = 0
        self.leader = names[0]

    def join(self, name: str) -> None:
        self.members[name] = Member(Herder(name, PluginsOfTests()))

    def kill(self, name: str) -> None:
        del self.members[name]

    def ask(self, number: int, request: Request) -> None:
        self.perform(
            self.leader, self.members[self.leader].herder.asked(number, request, self.now_ms)
        )

    def read(self, name: str) -> bool:
        """Let a member read one record; false if it has read them all."""
        member = self.members[name]
        if member.position == len(self.log):
            return False
        record = self.log[member.position]
        if record is not None:
            self.perform(name, member.herder.replayed(*record, member.position, self.now_ms))
        member.position += 1
        return True

    def compact(self) -> None:
        """Remove the records that all members have read and whose key has a later one there."""
        end = min(member.position for member in self.members.values())
        last = {record[0]: at for at, record in enumerate(self.log[:end]) if record is not None}
        kept = {*last.values(), *range(end, len(self.log))}
        self.log = [record if at in kept else None for at, record in enumerate(self.log)]

    def round(self) -> None:
        """One cooperative round: a slot moves only once its owner has given it up."""
        self.wants_round = False
        self.generation += 1
        if self.leader not in self.members:
            self.leader = min(self.members)
        while self.read(self.leader):
            pass
        until = self.members[self.leader].position
        counts = self.members[self.leader].herder.slot_counts()
        slots = [ConnectorSlot(name, at) for name, count in counts.items() for at in range(count)]
        names = sorted(self.members)
        given: dict[str, set[ConnectorSlot]] = {name: set() for name in names}
        for at, slot in enumerate(slots):
            wanted = names[at % len(names)]
            owner = next((name for name in names if slot in self.members[name].slots), wanted)
            if owner == wanted:
                given[wanted].add(slot)
            else:
                self.wants_round = True
        for name in names:
            while self.members[name].position < until:
                self.read(name)
        for name in names:
            self.members[name].slots = given[name]
            self.perform(
                name,
                self.members[name].herder.on_round(
                    given[name],
                    until=until,
                    generation=self.generation,
                    is_leader=name == self.leader,
                    now_ms=self.now_ms,
                ),
            )

    def read_status(self, record: ConfigRecord) -> None:
        """Let all members read a record of the status topic."""
        for name, member in list(self.members.items()):
            self.perform(name, member.herder.status_replayed(*record))

    def discover(self) -> None:
        name, asked = self.discoveries.pop(0)
        if name in self.members:
            found = self.parts.get(asked.connector, [{}])
            herder = self.members[name].herder
            self.perform(name, herder.found(asked.connector, asked.settings, found, self.now_ms))

    def settle(self) -> None:
        """Run until nothing is left to do."""
        for _ in range(1_000):
            is_busy = sum(self.read(name) for name in list(self.members)) > 0
            if self.discoveries:
                self.discover()
            elif not is_busy and self.wants_round:
                self.round()
            elif not is_busy:
                return
        raise AssertionError("the group does not come to rest")

    def tick(self, by_ms: int) -> None:
        self.now_ms += by_ms
        for name, member in list(self.members.items()):
            self.perform(name, member.herder.tick(self.now_ms))

    def fail(self, slot: ConnectorSlot, *, may_pass: bool = True) -> None:
        for name, member in self.members.items():
            if slot in member.running:
                del member.running[slot]
                self.perform(
                    name,
                    member.herder.task_failed(
                        slot, "why", self.now_ms, RESTART_WAITS if may_pass else None
                    ),
                )

    def readers(self, connector: str) -> list[str]:
        """The parts of a connector that are read, once for each reader."""
        found: list[str] = []
        for member in self.members.values():
            for slot, (settings, _) in member.running.items():
                if slot.connector == connector:
                    parts = msgspec.json.decode(settings[TASK_PARTS], type=list[dict[str, str]])
                    found += [part["p"] for part in parts]
        return sorted(found)

    def running(self) -> dict[ConnectorSlot, bool]:
        """The running tasks, and whether they are paused."""
        return {
            slot: is_paused
            for member in self.members.values()
            for slot, (_, is_paused) in member.running.items()
        }

    def perform(self, name: str, effects: Sequence[Effect]) -> None:  # noqa: C901 - a case for each effect
        member = self.members[name]
        for effect in effects:
            # Of a connector; each worker tells the statuses of its own tasks.
            decides = isinstance(effect, Write | Discover | AskRound) or (
                isinstance(effect, WriteStatus) and effect.key[1] is None
            )
            assert member.herder.is_leader or not decides, f"{name} does not lead: {effect}"
            match effect:
                case Write(records):
                    # Its group refuses the transaction of a leader of before.
                    if name == self.leader:
                        self.log += records
                case WriteStatus(key, status):
                    self.read_status(status_record(*key, status))
                case RequestAnswer(number):
                    assert number not in self.answers, "answered twice"
                    self.answers[number] = effect
                case StartTask(slot, settings, is_paused):
                    assert slot not in member.running, f"{slot} is started twice"
                    member.running[slot] = settings, is_paused
                    self.perform(name, member.herder.task_began(slot, self.now_ms))
                case StopTask(slot):
                    del member.running[slot]
                case PauseTask(slot, is_paused):
                    member.running[slot] = member.running[slot][0], is_paused
                case Discover():
                    self.discoveries.append((name, effect))
                case LevelChanged(logger, level):
                    self.levels.setdefault(name, {})[logger] = level
                case AskRound():
                    self.wants_round = True
                case _:
                    pass


def group(*names: str) -> HerderGroup:
    """Return a group of these workers, or of two, whose source `x` has the parts `PARTS`."""
    made = HerderGroup(names or ("w1", "w2"), {"x": PARTS})
    made.round()
    return made


def state(made: HerderGroup, name: str, task: int | None = None) -> ConnectorState | None:
    """Return the state of a connector, or of one of its tasks, as the leader knows it."""
    found = made.members[made.leader].herder.statuses.statuses.get((name, task))
    return None if found is None else found.state
