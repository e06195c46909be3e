"""Whole lives of a worker's tasks, beside an account of what has to run at each moment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.herding.configs import TASK_PARTS, ConnectConfigs
from streamlog.connect.herding.herder_requests import (
    ConnectorSlot,
    Effect,
    PauseTask,
    StartTask,
    StopTask,
    WriteStatus,
)
from streamlog.connect.herding.lifecycle import ConnectorState, TargetState
from streamlog.connect.herding.own_tasks import (
    AUTO_RESTART,
    REFUSED_WAITS,
    RESTART_WAITS,
    OwnTasks,
    RestartWaits,
)
from streamlog.connect.herding.statuses import ConnectStatuses, Status

HERE = "here:1"
NAMES = ("s", "t")
SLOTS = [ConnectorSlot(name, task) for name in NAMES for task in range(3)]
Settings = Mapping[str, str]


@dataclass
class Failure:
    """That a task has failed so many times in a row, and when it is started again."""

    count: int
    due_ms: int | None


@dataclass
class Life:
    """The machine, a shell that does what it says, and the account."""

    configs: ConnectConfigs = field(default_factory=ConnectConfigs)
    statuses: ConnectStatuses = field(default_factory=ConnectStatuses)
    now_ms: int = 0
    offset: int = 0
    slots: frozenset[ConnectorSlot] = frozenset()
    until: int = 0
    generation: int = 1
    dealings: dict[str, list[tuple[int, list[Settings]]]] = field(default_factory=dict)
    shell: dict[ConnectorSlot, tuple[Settings, bool]] = field(default_factory=dict)
    """What runs: with which settings, and whether it is paused."""
    failures: dict[ConnectorSlot, Failure] = field(default_factory=dict)
    begun: dict[ConnectorSlot, int] = field(default_factory=dict)
    """When each of the tasks that run has begun."""
    first: set[ConnectorSlot] = field(default_factory=set)
    """The tasks that have not begun since they were started."""
    written: dict[ConnectorSlot, Status] = field(default_factory=dict)
    attempts: int = 0
    successes: int = 0
    lost: int = 0

    def __post_init__(self) -> None:
        self.own = OwnTasks(HERE, self.configs, self.statuses)

    def expected(self) -> dict[ConnectorSlot, Settings]:
        """The tasks that this worker has to run, or has seen fail."""
        found: dict[ConnectorSlot, Settings] = {}
        for slot in self.slots:
            counted = [
                tasks for at, tasks in self.dealings.get(slot.connector, []) if at < self.until
            ]
            is_wanted = self.configs.target(slot.connector) is not TargetState.STOPPED
            if counted and slot.task < len(counted[-1]) and is_wanted:
                found[slot] = counted[-1][slot.task]
        return found

    def perform(self, effects: Iterable[Effect]) -> None:
        has_started: set[ConnectorSlot] = set()
        for effect in effects:
            match effect:
                case StartTask(slot, settings, is_paused):
                    assert slot not in self.shell
                    self.shell[slot] = settings, is_paused
                    self.attempts += 1
                    has_started.add(slot)
                    self.first.add(slot)
                case StopTask(slot):
                    assert not has_started, "what ends frees its parts before anything starts"
                    del self.shell[slot]
                    self.first.discard(slot)
                case PauseTask(slot, is_paused):
                    assert self.shell[slot][1] is not is_paused
                    self.shell[slot] = self.shell[slot][0], is_paused
                case WriteStatus(key, status):
                    assert status is not None
                    assert (status.worker_id, status.generation) == (HERE, self.generation)
                    name, task = key
                    assert task is not None
                    self.written[ConnectorSlot(name, task)] = status
                    self.statuses.statuses[key] = status

    def deal(self, name: str, tasks: list[Settings]) -> None:
        self.configs.connectors[name] = {}
        self.configs.tasks[name] = [dict(each) for each in tasks]
        self.own.dealt(name, self.offset)
        self.dealings.setdefault(name, []).append((self.offset, tasks))
        self.offset += 1
        self.changed(name)

    def target(self, name: str, target: TargetState) -> None:
        self.configs.targets[name] = target
        self.changed(name)

    def delete(self, name: str) -> None:
        for kept in (self.configs.connectors, self.configs.tasks, self.configs.targets):
            kept.pop(name, None)
        self.own.forget(name)
        self.dealings.pop(name, None)
        self.changed(name)

    def changed(self, name: str) -> None:
        before = {slot: run for slot, run in self.shell.items() if slot.connector != name}
        were, written = self.own.states, dict(self.written)
        self.perform(self.own.settle(name))
        self.check_ended(were, written)
        assert before == {slot: run for slot, run in self.shell.items() if slot.connector != name}
        self.check()

    def round(self, slots: frozenset[ConnectorSlot], behind: int) -> None:
        before = dict(self.known().items())
        self.slots, self.until = slots, max(self.offset - behind, self.until)
        self.generation += 1
        were, written = self.own.states, dict(self.written)
        self.perform(self.own.on_round(slots, self.until, self.generation))
        self.check_ended(were, written)
        kept = set()
        for slot, settings in before.items():
            counted = [
                tasks for at, tasks in self.dealings.get(slot.connector, []) if at < self.until
            ]
            now = counted[-1][slot.task] if counted and slot.task < len(counted[-1]) else None
            if now is not None and now.get(TASK_PARTS) == settings.get(TASK_PARTS):
                kept.add(slot)
        assert self.own.confirmed == kept
        self.check()

    def check_ended(
        self,
        were: Mapping[ConnectorSlot, ConnectorState],
        written: Mapping[ConnectorSlot, Status],
    ) -> None:
        """Hold the statuses of tasks that were given up against the rule."""
        for slot in {*were} - self.expected().keys():
            exists = slot.task < len(self.configs.tasks.get(slot.connector, ()))
            if exists and were[slot] not in {ConnectorState.UNASSIGNED, ConnectorState.FAILED}:
                assert self.written[slot].state is ConnectorState.UNASSIGNED
            else:
                # An operator sees why it failed after a move; of what is deleted nothing stays.
                assert self.written.get(slot) is written.get(slot)

    def known(self) -> dict[ConnectorSlot, Settings]:
        """The tasks that the machine has, with their settings."""
        return {**self.seen, **{slot: run[0] for slot, run in self.shell.items()}}

    seen: dict[ConnectorSlot, Settings] = field(default_factory=dict)
    """Failed tasks that are not given up, with their settings."""

    def begin(self, slot: ConnectorSlot) -> None:
        if slot not in self.shell:
            if slot not in self.seen:
                assert not [*self.own.began(slot, self.now_ms)]
            return
        self.perform(self.own.began(slot, self.now_ms))
        self.begun[slot] = self.now_ms
        self.successes += slot in self.first
        self.first.discard(slot)
        is_paused = self.configs.target(slot.connector) is TargetState.PAUSED
        state = ConnectorState.PAUSED if is_paused else ConnectorState.RUNNING
        assert self.written[slot].state is self.own.state(slot) is state
        self.check()

    def fail(self, slot: ConnectorSlot, waits: RestartWaits | None) -> None:
        if slot not in self.shell:
            if slot not in self.seen:
                assert not [*self.own.failed(slot, "why", self.now_ms, waits)]
            return
        settings, _ = self.shell.pop(slot)
        self.lost += slot in self.first
        self.first.discard(slot)
        self.seen[slot] = settings
        self.perform(self.own.failed(slot, "why", self.now_ms, waits))
        # Ten minutes at work are as good as a new task.
        before = self.failures.get(slot, Failure(0, None)).count
        count = 1 if self.now_ms - self.begun.pop(slot, self.now_ms) >= 600_000 else before + 1
        is_automatic = settings.get(AUTO_RESTART, "true").strip() != "False"
        first_ms, longest_ms = waits or (0, 0)
        is_automatic = is_automatic and waits is not None
        wait_ms = min(first_ms * 2 ** (count - 1), longest_ms)
        self.failures[slot] = Failure(count, self.now_ms + wait_ms if is_automatic else None)
        status = self.written[slot]
        told = f"in {wait_ms // 1_000} s" if is_automatic else f"restart {slot.connector} --failed"
        assert status.state is ConnectorState.FAILED
        assert re.fullmatch(f"why\nTask {slot.task}: .*{re.escape(told)}.*", status.trace or "")
        self.check()

    def restart(self, slot: ConnectorSlot) -> None:
        is_known = slot in self.known()
        self.again([slot] if is_known else [])
        self.perform(self.own.restart(slot))
        if is_known:
            assert slot in self.first
        self.check()

    def again(self, slots: Iterable[ConnectorSlot]) -> None:
        for slot in slots:
            self.seen.pop(slot, None)

    def tick(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.again(
            [
                slot
                for slot in self.seen
                if (due_ms := self.failures[slot].due_ms) is not None and due_ms <= self.now_ms
            ]
        )
        self.perform(self.own.tick(self.now_ms))
        self.check()

    def check(self) -> None:
        """Hold what runs against the account."""
        expected = self.expected()
        for slot in [
            slot for slot, settings in self.seen.items() if expected.get(slot) != settings
        ]:
            del self.seen[slot]
        for kept in (self.failures, self.begun):
            for slot in [*kept]:
                if self.known().get(slot) != expected.get(slot) or slot not in expected:
                    del kept[slot]
        assert {slot: run[0] for slot, run in self.shell.items()} == {
            slot: settings for slot, settings in expected.items() if slot not in self.seen
        }
        for slot, (_, is_paused) in self.shell.items():
            assert is_paused is (self.configs.target(slot.connector) is TargetState.PAUSED)
        assert self.own.states.keys() == expected.keys()
        for slot in SLOTS:
            assert self.own.has(slot) is (slot in self.slots)
            assert (self.own.state(slot) is not None) is (slot in expected)
            assert (self.own.state(slot) is ConnectorState.FAILED) is (slot in self.seen)
        for name in NAMES:
            assert self.own.of(name) == sorted(s for s in expected if s.connector == name)
            last = self.dealings.get(name, [])[-1:]
            assert self.own.is_counted(name) is all(at < self.until for at, _ in last)
        assert self.own.has_uncounted is not all(map(self.own.is_counted, NAMES))
        starts = self.own.starts
        assert (starts.attempts, starts.successes, starts.failures) == (
            self.attempts,
            self.successes,
            self.lost,
        )


slots = st.sampled_from(SLOTS[:2]) | st.sampled_from(SLOTS)
names = st.sampled_from(NAMES)
settings = st.builds(
    lambda parts, colour, automatic: {
        TASK_PARTS: parts,
        "colour": colour,
        **({} if automatic is None else {AUTO_RESTART: automatic}),
    },
    st.sampled_from(["[1]", "[2]", "[3]"]),
    st.sampled_from(["red", "blue"]),
    st.sampled_from([None, None, "true", " False"]),
)
steps = st.one_of(
    st.tuples(st.just("deal"), names, st.lists(settings, max_size=3)),
    st.tuples(st.just("target"), names, st.sampled_from(TargetState)),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("round"), st.frozensets(slots), st.integers(0, 2)),
    st.tuples(st.just("begin"), slots),
    st.tuples(st.just("fail"), slots, st.sampled_from([None, RESTART_WAITS, REFUSED_WAITS])),
    st.tuples(st.just("restart"), slots),
    st.tuples(st.just("tick"), st.sampled_from([1, 999, 1_000, 4_000, 300_000, 600_000])),
)


@given(st.lists(st.lists(steps, min_size=3, max_size=10), max_size=4))
def test_tasks_run_as_slots_dealings_targets_and_failures_say(
    portions: list[list[tuple[str, object]]],
) -> None:
    life = Life()
    life.deal("s", [{TASK_PARTS: "[1]"}, {TASK_PARTS: "[2]"}])
    life.round(frozenset(SLOTS[:2]), 0)
    for what, *arguments in (step for portion in portions for step in portion):
        if what == "fail":
            slot, waits = arguments
            life.fail(slot, waits)  # type: ignore[arg-type]
        else:
            getattr(life, what)(*arguments)
