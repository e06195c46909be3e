"""Owners of a changelog, late writes of former ones, and compaction: what holds, until when.

A small model of `restore` and `commit` around the real `Fences`, with the effect of compaction on a
log: below some offset, only the newest record of each key stays, whichever owner wrote it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from streamlog.records.batch import LogRecord
from streamlog.tables.stores.memory_store import MemoryStore
from streamlog.worker.state.restore import LATE_KEY, OWNER_KEY, Fences, epoch_headers

State = dict[bytes, bytes | None]


@dataclass
class Owner:
    """A task in a process: its state, its epoch, and the position of its next checkpoint."""

    epoch: int
    state: State
    next_offset: int


@dataclass
class Changelog:
    """The log, and the state that the owners have committed to it."""

    records: list[LogRecord] = field(default_factory=list)
    history: list[LogRecord] = field(default_factory=list)
    """All records ever written, without compaction."""
    end_offset: int = 0
    truth: State = field(default_factory=dict)
    owners: list[Owner] = field(default_factory=list)

    def append(self, key: bytes, value: bytes | None, epoch: int | None) -> int:
        headers = () if epoch is None else epoch_headers(epoch)
        record = LogRecord(self.end_offset, 0, key, value, headers)
        self.records.append(record)
        self.history.append(record)
        self.end_offset += 1
        return self.end_offset - 1

    def restored(self) -> tuple[State, Fences]:
        """Return what a process without local state restores."""
        fences = Fences()
        state: State = {}
        for key, value in fences.admit(self.records):
            if key not in {OWNER_KEY, LATE_KEY}:
                _apply(state, key, value)
        return state, fences

    def open(self, *, dies: bool) -> None:
        """Take over: fence, replay, and write late keys again; may die before the last of these."""
        epoch = self.append(OWNER_KEY, b"", None)
        state, fences = self.restored()
        if dies:
            return
        self._write_again(fences.late, state, epoch)
        self.owners.append(Owner(epoch, state, epoch + 1))

    def commit(self, owner: Owner, key: bytes, value: bytes | None, *, dies: bool) -> None:
        """Write one change; an owner that finds a foreign record before it examines that."""
        offset = self.append(key, value, owner.epoch)
        if owner.epoch == self._last_fence():
            _apply(self.truth, key, value)
        _apply(owner.state, key, value)
        if dies:
            self.owners.remove(owner)
        elif offset != owner.next_offset:
            fences = Fences(owner=owner.epoch)
            between = (r for r in self.records if owner.next_offset <= r.offset < offset)
            fences.admit(between)
            if fences.owner != owner.epoch:
                self.owners.remove(owner)
                return
            self._write_again(fences.late - {key}, owner.state, owner.epoch)
        owner.next_offset = offset + 1

    def compact(self, before_offset: int) -> None:
        newest = {r.key: r.offset for r in self.records if r.offset < before_offset}
        self.records = [
            r for r in self.records if r.offset >= before_offset or r.offset == newest[r.key]
        ]

    def first_open(self) -> int:
        """Return the offset of the first late record whose key no owner has written since."""
        owner, late = -1, dict[bytes | None, int]()
        for record in self.history:
            epoch = _epoch(record)
            if record.key == OWNER_KEY:
                owner = record.offset
            elif epoch < owner:
                late.setdefault(record.key, record.offset)
            else:
                late.pop(record.key, None)
        return min(late.values(), default=self.end_offset)

    def _write_again(self, keys: set[bytes], state: State, epoch: int) -> None:
        for key in sorted(keys):
            self.append(key, state.get(key), epoch)

    def _last_fence(self) -> int:
        return max(r.offset for r in self.records if r.key == OWNER_KEY)


def _epoch(record: LogRecord) -> int:
    return int.from_bytes(dict(record.headers).get("epoch") or b"", "big")


def _apply(state: State, key: bytes, value: bytes | None) -> None:
    if value is None:
        state.pop(key, None)
    else:
        state[key] = value


class Step(NamedTuple):
    kind: str
    who: int
    key: bytes
    value: bytes | None
    dies: bool


STEPS = st.builds(
    Step,
    st.sampled_from(["open", *["commit"] * 4, "compact"]),
    st.integers(0, 9),
    st.sampled_from([b"a", b"b", b"c"]),
    st.one_of(st.none(), st.sampled_from([b"1", b"2", b"3"])),
    st.sampled_from([False, False, False, True]),
)


@given(st.lists(STEPS, min_size=5, max_size=60))
def test_compaction_below_the_first_unrepaired_late_record_is_harmless(steps: list[Step]) -> None:
    """Compaction must not pass a late record whose key has not been written again."""
    changelog = Changelog()
    changelog.open(dies=False)
    for kind, who, key, value, dies in steps:
        match kind:
            case "open":
                changelog.open(dies=dies)
            case "commit" if changelog.owners:
                owner = changelog.owners[who % len(changelog.owners)]
                changelog.commit(owner, key, value, dies=dies)
            case "compact":
                changelog.compact(changelog.first_open() * who // 9)
        assert changelog.restored()[0] == changelog.truth
    changelog.open(dies=False)
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == changelog.truth


@dataclass
class Opening:
    """A worker that opens the task step by step; it may be suspended between any two."""

    store: State
    """Its local rows, with the owner and the late keys."""
    position: int
    epoch: int = -1
    late: frozenset[bytes] = frozenset()

    @property
    def is_open(self) -> bool:
        return 0 <= self.epoch < self.position

    @property
    def rows(self) -> State:
        return {k: v for k, v in self.store.items() if k not in {OWNER_KEY, LATE_KEY}}


@dataclass
class Transactions(Changelog):
    """Exactly once: the group's generation, not a fence, decides which transactions count."""

    workers: list[Opening] = field(default_factory=list)
    """The last one belongs to the current generation."""

    def join(self, store: State, position: int) -> None:
        """Let a worker open the task with this local state."""
        self.workers.append(Opening(dict(store), position))

    def advance(self, who: Opening) -> None:
        """Write the fence, or restore the records before it."""
        if who.epoch < 0:
            who.epoch = self.append(OWNER_KEY, b"", None)
        elif not who.is_open:
            fences = Fences.stored(_Kept(who.store))
            read = [r for r in self.records if who.position <= r.offset <= who.epoch]
            for key, value in fences.admit(read):
                _apply(who.store, key, value)
            who.position, who.late = who.epoch + 1, frozenset(fences.late)

    def transact(self, changes: State, between: Callable[[], None]) -> None:
        """Let the current owner commit, while something else happens."""
        owner = self.workers[-1]
        while not owner.is_open:
            self.advance(owner)
        assert owner.rows == self.truth
        for key, value in {
            **{key: owner.store.get(key) for key in owner.late},
            **changes,
        }.items():
            self.append(key, value, None)
            between()
            _apply(self.truth, key, value)
            _apply(owner.store, key, value)
        # Records that others have written in between do not concern it.
        owner.position, owner.late = self.end_offset, frozenset()
        owner.store.pop(LATE_KEY, None)


class _Kept(MemoryStore):
    """A store with these rows."""

    def __init__(self, rows: State) -> None:
        super().__init__()
        for key, value in rows.items():
            if value is not None:
                self.put(key, value)


@given(
    st.lists(STEPS, max_size=20),
    st.lists(
        st.tuples(
            st.sampled_from(["join", "commit", "go on", "go on"]),
            st.integers(0, 9),
            st.dictionaries(
                st.sampled_from([b"a", b"b", b"c"]),
                st.one_of(st.none(), st.sampled_from([b"1", b"2", b"3"])),
                min_size=1,
            ),
        ),
        min_size=5,
        max_size=60,
    ),
)
def test_a_worker_that_opens_late_changes_nothing_exactly_once(
    before: list[Step], steps: list[tuple[str, int, State]]
) -> None:
    """This holds after any at-least-once writes, and for a worker that resumes while it opens."""
    changelog = Transactions()
    changelog.open(dies=False)
    for kind, who, key, value, dies in before:
        if kind == "open":
            changelog.open(dies=dies)
        elif changelog.owners:
            changelog.commit(changelog.owners[who % len(changelog.owners)], key, value, dies=dies)
    changelog.join({}, 0)
    for kind, who, changes in steps:
        some = changelog.workers[who % len(changelog.workers)]
        match kind:
            case "join":
                # With no state, or with the state that another process has left.
                changelog.join(*((some.store, some.position) if who % 2 else ({}, 0)))
            case "commit":
                former = changelog.workers[:-1]
                between = former[who % len(former)] if former else None
                changelog.transact(
                    changes, lambda one=between: None if one is None else changelog.advance(one)
                )
            case "go on":
                changelog.advance(some)
        assert changelog.restored()[0] == changelog.truth
    changelog.transact({}, lambda: None)
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == changelog.truth


def write_late(changelog: Changelog) -> None:
    """Write a late record, and let the owner die before it notices."""
    changelog.open(dies=False)
    sleeper = changelog.owners[0]
    changelog.commit(sleeper, b"a", b"right", dies=False)
    changelog.open(dies=False)
    changelog.commit(sleeper, b"a", b"late", dies=False)
    assert changelog.restored()[0] == changelog.truth == {b"a": b"right"}


def test_compacting_too_early_loses_the_value_before_a_late_record() -> None:
    """The late record has replaced the owner's, and is itself invalid."""
    changelog = Changelog()
    write_late(changelog)
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == {}


def test_compacting_too_early_loses_the_fence_before_a_late_record() -> None:
    """The next fence has replaced the one that came before the late record."""
    changelog = Changelog()
    write_late(changelog)
    changelog.open(dies=True)
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == {b"a": b"late"}


def test_opening_in_time_repairs_a_late_record() -> None:
    changelog = Changelog()
    write_late(changelog)
    changelog.open(dies=False)
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == {b"a": b"right"}


def test_the_first_transaction_repairs_a_late_record() -> None:
    """Also if it has no changes of its own, and another worker opens the task at that time."""
    changelog = Transactions()
    write_late(changelog)
    changelog.join({}, 0)
    changelog.join({}, 0)
    changelog.transact({}, lambda: changelog.advance(changelog.workers[0]))
    changelog.compact(changelog.end_offset)
    assert changelog.restored()[0] == {b"a": b"right"}
