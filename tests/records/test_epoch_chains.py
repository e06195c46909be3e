"""Epoch chains, compared with logs as lists of writers: truncated, grown again, trimmed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from random import Random

import pytest

from streamlog.records.epoch_chains import (
    CHAIN_MAX,
    EpochChain,
    EpochEnd,
    answer_all,
    contains,
    find_divergence,
    learn_chain,
)
from tests.for_each import for_each


@dataclass
class ListedLog:
    """A log as a list of its records' writers: pairs of epoch and leader."""

    records: list[tuple[int, int]]
    current: int
    begin: int = 0

    def end_of(self, epoch: int) -> EpochEnd:
        """Return the end of an epoch as KIP-320 defines it, by a look at every record."""
        if epoch > self.current:
            return EpochEnd(-1, -1)
        kept = self.records[self.begin :]
        upto = [*takewhile(lambda each: each[0] <= epoch, kept)]
        found = max((each for each, _ in upto), default=epoch)
        if epoch == self.current:
            found = epoch
        return EpochEnd(found, self.begin + len(upto))

    def ask(self, wanted: Mapping[str, int]) -> dict[str, EpochEnd]:
        return {key: self.end_of(epoch) for key, epoch in wanted.items()}

    def chain(self, offset: int, known: EpochChain = ()) -> EpochChain:
        return answer_all({"": learn_chain(offset, self.current, known)}, self.ask)[""]

    def divergence(self, offset: int, chain: EpochChain) -> int | None:
        return answer_all({"": find_divergence(offset, chain, self.begin)}, self.ask)[""]

    def grow(self, chance: Random, epoch: int, leader: int, most: int = 4) -> None:
        self.current = epoch
        self.records += [(epoch, leader)] * chance.randint(0, most)


def grown(chance: Random, lives: int) -> ListedLog:
    log = ListedLog([], 0)
    epoch = 0
    for leader in range(lives):
        log.grow(chance, epoch, leader)
        epoch += chance.randint(1, 3)
    return log


def common_prefix(one: ListedLog, other: ListedLog) -> int:
    pairs = zip(one.records, other.records, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


@for_each("seed", range(300))
def test_a_chain_lists_the_epochs_of_the_records(seed: int) -> None:
    chance = Random(seed)
    log = grown(chance, chance.randint(1, 30))
    log.begin = chance.choice([0, chance.randint(0, len(log.records))])
    assert log.divergence(log.begin, log.chain(log.begin)) is None
    for offset in range(log.begin + 1, len(log.records) + 1):
        firsts = {epoch: at for at, (epoch, _) in reversed([*enumerate(log.records[:offset])])}
        # An epoch from before the log start counts from the log start; epoch 0 begins at 0.
        expected = [(e, max(at, log.begin if e else 0)) for e, at in firsts.items()]
        expected = sorted(entry for entry in expected if _is_kept(log, entry[0]))
        chain = log.chain(offset)
        if log.begin and chain[0] == (0, 0):
            chain = chain[1:] if expected[0][0] else chain
        assert chain == tuple(expected)[-CHAIN_MAX:]
        assert log.divergence(offset, chain) is None
        # A chain that is learned in two steps ends with the same entry.
        before = log.chain(chance.randint(log.begin, offset))
        assert log.chain(offset, before)[-1:] == chain[-1:]


def _is_kept(log: ListedLog, epoch: int) -> bool:
    return any(each == epoch for each, _ in log.records[log.begin :])


@for_each("seed", range(1_000))
def test_a_truncated_and_regrown_log_is_found(seed: int) -> None:
    chance = Random(seed)
    old = grown(chance, chance.randint(1, 8))
    size = len(old.records)
    offset = chance.randint(0, size)
    chain = old.chain(offset)
    new = ListedLog(old.records[: chance.randint(0, size)], old.current)
    epoch, leader = old.current, 1_000
    for _ in range(chance.randint(0, 3)):
        epoch += chance.randint(1, 2)
        leader += 1
        new.grow(chance, epoch, leader, most=12)
    truth = common_prefix(old, new)
    assert new.divergence(offset, chain) == (None if truth >= offset else truth)


@for_each("seed", range(1_000))
def test_an_unclean_leader_without_whole_epochs_is_found(seed: int) -> None:
    """Each log has epochs that the other one lacks."""
    chance = Random(seed)
    common = grown(chance, chance.randint(1, 4))
    epochs = [*range(common.current + 1, common.current + 9)]
    chance.shuffle(epochs)
    logs = []
    for leader, own in ((100, sorted(epochs[:4])), (200, sorted(epochs[4:]))):
        log = ListedLog([*common.records], common.current)
        for epoch in own:
            log.grow(chance, epoch, leader + epoch)
        logs.append(log)
    old, new = logs
    new.current = max(new.current, old.current) + 1
    offset = chance.randint(0, len(old.records))
    truth = common_prefix(old, new)
    found = new.divergence(offset, old.chain(offset))
    assert found == (None if truth >= offset else truth)


@for_each("seed", range(1_000))
def test_a_restored_backup_with_repeated_epochs_is_found(seed: int) -> None:
    chance = Random(seed)
    old = grown(chance, chance.randint(2, 8))
    offset = chance.randint(1, len(old.records)) if old.records else 0
    chain = old.chain(offset)
    new = ListedLog(old.records[: chance.randint(0, len(old.records))], 0)
    new.current = epoch = max((each for each, _ in new.records), default=0)
    for leader in range(1_000, 1_000 + chance.randint(0, 3)):
        epoch += 1
        new.grow(chance, epoch, leader, most=12)
    truth = common_prefix(old, new)
    found = new.divergence(offset, chain)
    if truth >= offset:
        assert found is None
    elif any(at >= truth for at, _ in _beginnings(old) & _beginnings(new)):
        assert found is None or found >= truth  # An epoch began again at an equal offset.
    else:
        assert found == truth


def _beginnings(log: ListedLog) -> set[tuple[int, int]]:
    """Return the offsets at which epochs begin, with the current one even without records."""
    epochs = [epoch for epoch, _ in log.records]
    firsts = {(epochs.index(epoch), epoch) for epoch in epochs}
    return firsts if log.current in epochs else {*firsts, (len(epochs), log.current)}


@for_each("seed", range(300))
def test_a_moved_log_start_is_no_truncation(seed: int) -> None:
    chance = Random(seed)
    log = grown(chance, chance.randint(1, 8))
    size = len(log.records)
    log.begin = chance.randint(0, size)
    offset = chance.randint(log.begin, size)
    chain = log.chain(offset)
    log.begin = chance.randint(log.begin, offset)
    log.grow(chance, log.current + 1, 1_000)
    assert log.divergence(offset, chain) is None


@dataclass
class CompactedCopy(ListedLog):
    """A Kafka replica of a compacted log: it knows only the epochs of the remaining records."""

    gone: frozenset[int] = frozenset()

    def end_of(self, epoch: int) -> EpochEnd:
        if epoch > self.current:
            return EpochEnd(-1, -1, keeps_epochs=False)
        if epoch == self.current:
            return EpochEnd(epoch, len(self.records), keeps_epochs=False)
        left = [(at, e) for at, (e, _) in enumerate(self.records) if at not in self.gone]
        later = (at for at, e in left if e > epoch)
        found = max((e for _, e in left if e <= epoch), default=epoch)
        return EpochEnd(found, min(later, default=len(self.records)), keeps_epochs=False)


@for_each("seed", range(1_000))
def test_compaction_is_no_truncation(seed: int) -> None:
    chance = Random(seed)
    log = grown(chance, chance.randint(1, 8))
    offset = chance.randint(0, len(log.records))
    chain = log.chain(offset)
    log.grow(chance, log.current + 1, 1_000)
    gone = frozenset(at for at in range(len(log.records)) if chance.random() < 0.7)
    copy = CompactedCopy(log.records, log.current, gone=gone)
    assert copy.divergence(offset, chain) is None
    # A reader that got the record before its offset from the copy asks a complete replica.
    copy.gone -= {offset - 1}
    assert CompactedCopy(log.records, log.current).divergence(offset, copy.chain(offset)) is None


@for_each("seed", range(1_000))
def test_a_truncated_compacted_log_is_found(seed: int) -> None:
    chance = Random(seed)
    old = grown(chance, chance.randint(1, 8))
    offset = chance.randint(0, len(old.records))
    chain = old.chain(offset)
    size = chance.randint(0, len(old.records))
    new = CompactedCopy(old.records[:size], old.current)
    for leader in range(1_000, 1_000 + chance.randint(0, 3)):
        new.grow(chance, new.current + chance.randint(1, 2), leader, most=12)
    gone = frozenset(at for at in range(size) if chance.random() < 0.7)
    new.gone = gone
    found = new.divergence(offset, chain)
    if common_prefix(old, new) >= offset:
        assert found is None
    elif len(new.records) > size:
        # The exact offset is unknown: the writers of removed records are unknown.
        assert found is not None


@pytest.mark.parametrize(
    ("found", "is_contained"),
    [
        (EpochEnd(2, 8), True),
        (EpochEnd(2, 9, keeps_epochs=False), True),
        (EpochEnd(2, 7), False),
        (EpochEnd(2, 7, keeps_epochs=False), False),
        (EpochEnd(1, 9), False),
        (EpochEnd(1, 9, keeps_epochs=False), True),
        (EpochEnd(1, 7, keeps_epochs=False), False),
        (EpochEnd(-1, -1), False),
        (EpochEnd(-1, -1, keeps_epochs=False), False),
    ],
)
def test_a_log_contains_a_position_by_the_end_of_its_epoch(
    found: EpochEnd, is_contained: bool
) -> None:
    assert contains(found, 2, 8) is is_contained
