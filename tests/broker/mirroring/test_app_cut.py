"""Cuts of apps, on random histories whose every record knows its writer and its readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.mirroring.apps.app_cut import (
    AppCut,
    AppHistory,
    LoggedTransaction,
    PartitionHistory,
    PartitionScan,
    Positions,
    Span,
    TransactionName,
    Where,
    cut_app,
)
from streamlog.errors import LogError

INPUTS: list[Where] = [("in", 0), ("in", 1)]
MIDDLE: list[Where] = [("middle", 0), ("middle", 1)]
OUTPUT: Where = ("out", 0)
OFFSETS: Where = ("offsets", 0)
WRITTEN = [*MIDDLE, OUTPUT, OFFSETS]
FIRST, SECOND, OUTSIDER = 1, 2, 3
READS: dict[int, list[Where]] = {FIRST: INPUTS, SECOND: MIDDLE, OUTSIDER: []}
WRITES: dict[int, list[Where]] = {FIRST: MIDDLE, SECOND: [OUTPUT], OUTSIDER: INPUTS}
"""The second half of the app reads what the first one writes; another program feeds both."""


@dataclass(eq=False)
class Work:
    """A transaction, with all that is known of it at the source."""

    producer: int
    epoch: int
    touched: set[Where] = field(default_factory=set)
    read_to: dict[Where, int] = field(default_factory=dict)
    sources: list[tuple[Where, int]] = field(default_factory=list)
    """The records that it has read, without aborted ones."""
    outcome: bool | None = None

    @property
    def name(self) -> TransactionName:
        return self.producer, self.epoch + 1


@dataclass
class Entry:
    """A record, or a marker, at the next offset of a partition."""

    work: Work | None
    marker: bool = False


class Life:
    """A source at which two halves of an app and an outsider work, step by step.

    Args:
        random: decides what happens.
        steps: how much happens.
    """

    def __init__(self, random: Random, steps: int) -> None:
        self.random = random
        self.logs: dict[Where, list[Entry]] = {each: [] for each in [*INPUTS, *WRITTEN]}
        self.told: list[Work] = []
        """The log of transactions: those that have been decided."""
        self.done: list[Work] = []
        self.positions: dict[Where, int] = {}
        self.working: dict[int, Work] = {}
        self.ending: dict[int, list[Where]] = {}
        self.epochs = dict.fromkeys(READS, 0)
        for _ in range(steps):
            self._step(random.choice([*READS]))

    def finish(self) -> None:
        """Write all markers that are missing."""
        while self.ending:
            self._mark(next(iter(self.ending)))

    def _step(self, producer: int) -> None:
        random = self.random
        if producer in self.ending:
            self._mark(producer)
        elif producer not in self.working:
            self.working[producer] = Work(producer, self.epochs[producer])
            if producer == OUTSIDER and random.random() < 0.5:
                self.logs[random.choice(INPUTS)].append(Entry(None))
        elif random.random() < 0.6:
            self._work(self.working[producer])
        else:
            self._decide(self.working[producer], commits=random.random() < 0.75)

    def _work(self, work: Work) -> None:
        random = self.random
        # Some transactions only write: an app may do so by the clock.
        if READS[work.producer] and random.random() < 0.7:
            where = random.choice(READS[work.producer])
            begin = work.read_to.get(where, self.positions.get(where, 0))
            end = random.randint(begin, max(begin, self.stable_end(where)))
            work.sources += [
                (where, offset)
                for offset in range(begin, end)
                if not (entry := self.logs[where][offset]).marker
                and (entry.work is None or entry.work.outcome)
            ]
            work.read_to[where] = end
            if work.read_to and OFFSETS not in work.touched and random.random() < 0.5:
                self._write(work, OFFSETS)
        for _ in range(random.randrange(3)):
            self._write(work, random.choice(WRITES[work.producer]))

    def _write(self, work: Work, where: Where) -> None:
        work.touched.add(where)
        self.logs[where].append(Entry(work))

    def _decide(self, work: Work, *, commits: bool) -> None:
        if work.read_to and OFFSETS not in work.touched:
            self._write(work, OFFSETS)
        work.outcome = commits
        self.told.append(work)
        self.ending[work.producer] = self.random.sample(sorted(work.touched), len(work.touched))
        self._mark(work.producer)

    def _mark(self, producer: int) -> None:
        work = self.working[producer]
        if self.ending[producer]:
            self.logs[self.ending[producer].pop()].append(Entry(work, marker=True))
        if not self.ending[producer]:
            if work.outcome:
                self.positions |= work.read_to
            self.done.append(work)
            del self.ending[producer], self.working[producer]
            self.epochs[producer] += 1

    def stable_end(self, where: Where) -> int:
        """Return how far a reader of committed records gets."""
        log = self.logs[where]
        ended = {entry.work for entry in log if entry.marker}
        opened = (
            n for n, each in enumerate(log) if each.work is not None and each.work not in ended
        )
        return next(opened, len(log))


@dataclass
class Mirrored:
    """How far a mirror has come in each partition, and in the log of transactions."""

    life: Life
    ends: dict[Where, int]
    told: int
    whole: dict[Where, int] = field(default_factory=dict)
    forgotten: int = 0
    """How many transactions were compacted away before they could be copied."""

    @classmethod
    def draw(cls, life: Life, random: Random) -> Mirrored:
        ends = {where: random.randint(len(log) // 2, len(log)) for where, log in life.logs.items()}
        return cls(life, ends, random.randint(len(life.told) // 2, len(life.told)))

    def ahead(self, random: Random) -> Mirrored:
        """Return a mirror that has come further."""
        logs = self.life.logs
        ends = {each: random.randint(end, len(logs[each])) for each, end in self.ends.items()}
        told = random.randint(self.told, len(self.life.told))
        return Mirrored(self.life, ends, told, self.whole, self.forgotten)

    def known(self) -> list[Work]:
        return self.life.told[self.forgotten : self.told]

    def history(self) -> AppHistory:
        positions: dict[TransactionName, list[Positions]] = {}
        for work in self.life.told:
            # They are in the partition of the offsets, below the marker there.
            if work.read_to:
                positions[work.name] = [Positions("app", OFFSETS, work.read_to)]
        return AppHistory(
            partitions={where: self._partition(where) for where in self.life.logs},
            transactions={
                each.name: LoggedTransaction(each.touched, bool(each.outcome))
                for each in self.known()
            },
            positions=positions,
        )

    def _partition(self, where: Where) -> PartitionHistory:
        scan = PartitionScan()
        for offset, entry in enumerate(self.life.logs[where][: self.ends[where]]):
            work = entry.work
            if work is None:
                continue
            if entry.marker:
                scan.on_marker(*work.name, offset, commits=bool(work.outcome))
            else:
                scan.on_records(work.producer, work.epoch, offset)
        return PartitionHistory(
            end=self.ends[where],
            spans=scan.spans(),
            is_cut=where in WRITTEN,
            whole_below=self.whole.get(where, 0),
        )

    # The definition, by loops over records.

    def included(self, ends: dict[Where, int]) -> set[Work]:
        """Return the committed transactions of the app with a marker below some end."""
        return {
            entry.work
            for where in WRITTEN
            for entry in self.life.logs[where][: ends[where]]
            if entry.marker and entry.work is not None and entry.work.outcome
        }

    def faults(self, cut: dict[Where, int]) -> Iterator[str]:
        """Yield what is wrong with a cut."""
        ends = {**self.ends, **cut}
        inside = self.included(ends)
        known = {*self.known(), *self.life.told[: self.forgotten]}
        for work in inside:
            if work not in known:
                yield f"{work.name} is not known to have been written in these partitions only"
            for where in work.touched:
                if not self._has_marker(work, where, ends):
                    yield f"{work.name} is not whole in {where}"
            for where, offset in work.read_to.items():
                if offset > ends[where]:
                    yield f"{work.name} has read {where} beyond its end"
                for writer in self._writers(where, offset, known):
                    is_in = writer in inside or where in INPUTS
                    if not (is_in and self._has_marker(writer, where, ends)):
                        yield f"{work.name} has read of {writer.name}, which is not in"
            before = [e for e in self.life.told if e.producer == work.producer and e.outcome]
            if any(e not in inside for e in before[: before.index(work)] if e.touched & {*WRITTEN}):
                yield f"{work.name} is in without one before it"

    def _has_marker(self, work: Work, where: Where, ends: dict[Where, int]) -> bool:
        return any(e.marker and e.work is work for e in self.life.logs[where][: ends[where]])

    def _writers(self, where: Where, offset: int, known: set[Work]) -> Iterator[Work]:
        """Yield those who wrote below an offset and are not known to have aborted."""
        for entry in self.life.logs[where][:offset]:
            work = entry.work
            if work is None:
                continue
            is_told = work in known or any(
                self._has_marker(work, each, self.ends) for each in self.life.logs
            )
            if work.outcome or not is_told:
                yield work


def names(works: Iterable[Work]) -> set[TransactionName]:
    return {each.name for each in works}


def check(mirror: Mirrored) -> AppCut:
    found = cut_app(mirror.history())
    cut = dict(found.ends)
    assert {*cut} == {*WRITTEN}
    assert all(0 <= cut[where] <= mirror.ends[where] for where in cut)
    assert [*mirror.faults(cut)] == []
    inside = mirror.included({**mirror.ends, **cut})
    assert not names(inside) & found.out.keys()
    # No record read twice and none left out: positions are where the last transaction left them.
    expected: dict[tuple[str, Where], int] = {}
    for work in mirror.life.told:
        if work in inside:
            expected |= {("app", where): offset for where, offset in work.read_to.items()}
    assert found.positions == expected
    return found


@given(st.integers(0, 2**32), st.integers(0, 200))
def test_a_cut_is_consistent_and_moves_only_forwards(seed: int, steps: int) -> None:
    random = Random(seed)
    mirror = Mirrored.draw(Life(random, steps), random)
    before = check(mirror)
    after = check(mirror.ahead(random))
    assert all(end <= after.ends[where] for where, end in before.ends.items())


@given(st.integers(0, 2**32), st.integers(0, 45))
def test_no_other_consistent_cut_keeps_more(seed: int, steps: int) -> None:
    random = Random(seed)
    mirror = Mirrored.draw(Life(random, steps), random)
    found = check(mirror).ends
    choices = []
    for where in WRITTEN:
        log = mirror.life.logs[where][: mirror.ends[where]]
        choices.append([len(log), *(n for n, each in enumerate(log) if each.marker)])
    for ends in product(*choices):
        other = dict(zip(WRITTEN, ends, strict=True))
        if any(other[where] > found[where] for where in WRITTEN):
            assert next(mirror.faults(other), None) is not None, (other, found)


@given(st.integers(0, 2**32), st.integers(0, 120))
def test_everything_that_was_copied_whole_is_kept(seed: int, steps: int) -> None:
    random = Random(seed)
    life = Life(random, steps)
    life.finish()
    ends = {where: len(log) for where, log in life.logs.items()}
    assert not check(Mirrored(life, ends, len(life.told))).out


@given(st.integers(0, 2**32), st.integers(0, 120))
def test_transactions_from_before_the_first_copy_are_told_by_their_markers(
    seed: int, steps: int
) -> None:
    random = Random(seed)
    life = Life(random, steps)
    older = [each for each in life.done if each in life.told]
    # The log of transactions is compacted up to some transaction that has ended since.
    forgotten = 0
    if older:
        last = random.choice(older)
        forgotten = life.told.index(last) + 1
    if any(each not in life.done for each in life.told[:forgotten]):
        return
    # All of their markers were there when its copy was complete.
    whole = {
        where: max(
            (n + 1 for n, e in enumerate(log) if e.marker and e.work in life.told[:forgotten]),
            default=0,
        )
        for where, log in life.logs.items()
    }
    ends = {where: random.randint(whole[where], len(log)) for where, log in life.logs.items()}
    # It counts once the log of transactions tells all that have markers below it.
    below = [
        life.told.index(e.work) + 1
        for where, log in life.logs.items()
        for e in log[: whole[where]]
        if e.marker and e.work
    ]
    told = random.randint(max(below, default=forgotten), len(life.told))
    check(Mirrored(life, ends, told, whole, forgotten))


def test_the_reader_of_records_that_are_cut_off_is_cut_off_though_its_position_is_there() -> None:
    a, b, group = ("a", 0), ("b", 0), ("offsets", 0)
    history = AppHistory(
        partitions={
            a: PartitionHistory(end=20, spans=(Span((1, 1), 0, 10, True),)),
            b: PartitionHistory(end=5),
            group: PartitionHistory(end=2, spans=(Span((2, 1), 0, 1, True),)),
        },
        transactions={
            (1, 1): LoggedTransaction([a, b], commits=True),
            (2, 1): LoggedTransaction([group], commits=True),
        },
        positions={(2, 1): [Positions("g", group, {a: 5})]},
    )
    found = cut_app(history)
    assert found.ends == {a: 10, b: 5, group: 1}
    assert found.out == {
        (1, 1): "its end in b-0 is not here",
        (2, 1): "not all is here that it has read from a-0",
    }
    assert found.positions == {}


def test_topics_that_the_link_leaves_out_need_not_be_whole() -> None:
    a, group = ("a", 0), ("offsets", 0)
    partitions = {
        a: PartitionHistory(end=2, spans=(Span((1, 1), 0, 1, True),)),
        group: PartitionHistory(end=2, spans=(Span((1, 1), 0, 1, True),)),
    }
    history = AppHistory(
        partitions=partitions,
        transactions={(1, 1): LoggedTransaction([a, group, ("elsewhere", 0)], commits=True)},
        positions={(1, 1): [Positions("g", group, {("input", 0): 7})]},
        left_out=("elsewhere", "input"),
    )
    assert cut_app(history).positions == {("g", ("input", 0)): 7}
    history = AppHistory(partitions=partitions, transactions=history.transactions)
    assert cut_app(history).out == {(1, 1): "its end in elsewhere-0 is not here"}


def test_without_a_first_copy_there_is_no_cut() -> None:
    history = AppHistory(
        partitions={("a", 0): PartitionHistory(end=2, whole_below=3)}, transactions={}
    )
    with pytest.raises(LogError, match="such as a-0, have not been copied once"):
        cut_app(history)


def test_a_producer_that_commits_twice_in_one_epoch_is_refused() -> None:
    scan = PartitionScan()
    scan.on_records(7, 0, 0)
    with pytest.raises(LogError, match=r"needs transaction\.version 2"):
        scan.on_marker(7, 0, 1, commits=True)


def test_an_abort_needs_no_epoch_of_its_own() -> None:
    scan = PartitionScan()
    scan.on_records(7, 0, 0)
    scan.on_marker(7, 0, 1, commits=False)
    assert scan.spans() == (Span((7, 0), 0, 1, False),)


def test_a_reader_beyond_an_aborted_transaction_is_in_although_its_marker_is_missing() -> None:
    a, group = ("a", 0), ("offsets", 0)
    partitions = {
        a: PartitionHistory(end=5, spans=(Span((1, 1), 0, None),)),
        group: PartitionHistory(end=2, spans=(Span((2, 1), 0, 1, True),)),
    }
    reader = {(2, 1): LoggedTransaction([group], commits=True)}
    positions = {(2, 1): [Positions("g", group, {a: 5})]}
    told = {**reader, (1, 1): LoggedTransaction([a], commits=False)}
    found = cut_app(AppHistory(partitions=partitions, transactions=told, positions=positions))
    assert found.ends == {a: 5, group: 2}
    # As long as the log of transactions does not tell, it may have been committed.
    found = cut_app(AppHistory(partitions=partitions, transactions=reader, positions=positions))
    assert found.ends == {a: 5, group: 1}


def test_a_producer_goes_no_further_than_its_first_transaction_that_is_missing() -> None:
    a, b = ("a", 0), ("b", 0)
    history = AppHistory(
        partitions={
            a: PartitionHistory(end=1, spans=(Span((1, 1), 0, None),)),
            b: PartitionHistory(end=9, spans=(Span((1, 2), 0, 8, True), Span((2, 1), 1, 7, True))),
        },
        transactions={
            (1, 1): LoggedTransaction([a], commits=True),
            (1, 2): LoggedTransaction([b], commits=True),
            (2, 1): LoggedTransaction([b], commits=True),
        },
    )
    found = cut_app(history)
    assert found.ends == {a: 1, b: 8}
    assert found.out[1, 2] == "one of its producer before it is not here"


def test_of_two_producers_the_later_one_says_where_a_group_stands() -> None:
    group, read = ("offsets", 0), ("in", 0)
    history = AppHistory(
        partitions={
            group: PartitionHistory(
                end=9, spans=(Span((2, 1), 0, 3, True), Span((1, 1), 4, 7, True))
            ),
            read: PartitionHistory(end=20, is_cut=False),
        },
        transactions={name: LoggedTransaction([group], commits=True) for name in ((1, 1), (2, 1))},
        positions={
            (2, 1): [Positions("g", group, {read: 12})],
            (1, 1): [Positions("g", group, {read: 5})],
        },
    )
    assert cut_app(history).positions == {("g", read): 5}
