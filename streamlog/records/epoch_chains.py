"""Epoch chains: which leaderships wrote a log up to an offset, and whether it still is that log.

A log that lost records (unclean leader election, a power cut with `flush=os`, a backup that was put
back) and has grown again holds other records at the same offsets. Leader epochs tell (KIP-320): a
reader keeps the last epochs before its offset, each with its first offset, and asks later where
each epoch ends. Pure: questions are yielded, and answers are those of OffsetsForLeaderEpoch; who
has many partitions asks for all of them at a time (`answered`).

Compaction: our brokers fill the gaps that it leaves with empty batches of the same epochs, so
that an epoch that is missing, or begins elsewhere, proves another log. Kafka's brokers don't: a
replica that has copied a compacted log knows an epoch only from the first batch of it that is
left, or not at all. Of such a log only the end of an epoch counts, as for Kafka's consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

EpochChain: TypeAlias = tuple[tuple[int, int], ...]
"""Epochs and their first offsets, the oldest first. Empty: nobody knows."""
CHAIN_MAX: Final = 16
"""Epochs that are kept; where a log diverges before all of them, nobody can tell where."""
UNKNOWN_OFFSET: Final = -1


class EpochEnd(NamedTuple):
    """The last epoch that is not after the one asked for, and the offset behind its last record.

    Both are -1 if the log has never heard of the epoch. Of one that is older than all that the log
    remembers, the end is the beginning of the log.
    """

    epoch: int
    end_offset: int
    keeps_epochs: bool = True
    """Whether the log keeps every epoch and its first offset when compaction removes records."""


def contains(found: EpochEnd, epoch: int, offset: int) -> bool:
    """Whether a log has what was read up to `offset`, the last record in `epoch`.

    `found` is its answer for this epoch. An earlier end than the offset is a truncation (KIP-320).
    An earlier epoch is one as well (KIP-595), unless compaction may have removed the epoch:

    1. A log has epoch 1 up to offset 6, epoch 2 up to 9, and epoch 3 since. A reader is at 8.
    2. Compaction removes all records of epoch 2, and a replica copies what is left.
    3. This replica leads and answers for epoch 2: epoch 1, which ends at 9. Nothing is lost.
    """
    return found.end_offset >= offset and (found.epoch == epoch or not found.keeps_epochs)


K = TypeVar("K")
T = TypeVar("T")
EpochQuestion: TypeAlias = Generator[int, EpochEnd, T]
"""Yields epochs, is sent their ends, and returns what follows from them."""


def learn_chain(offset: int, newest: int, known: EpochChain = ()) -> EpochQuestion[EpochChain]:
    """The last epochs of the records before `offset`.

    `newest` is the epoch of the log's leader, -1 if it is unknown; `known` are the epochs before
    an offset that is not after this one, in the same log.
    """
    known = tuple(entry for entry in known if entry[1] < offset)
    if offset <= 0 or newest < 0:
        return ()
    top = yield newest
    if top.end_offset < offset:
        return ()
    low, high = known[-1][0] if known else 0, top.epoch
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found.end_offset >= offset:
            high = max(low, min(found.epoch, middle))
        else:
            low = middle + 1
    found_chain: list[tuple[int, int]] = []
    epoch = high
    while epoch >= 0 and len(found_chain) < CHAIN_MAX:
        if known and epoch == known[-1][0]:
            break
        before = EpochEnd(-1, 0) if epoch == 0 else (yield epoch - 1)
        start = max(before.end_offset, 0)
        if start >= (found_chain[-1][1] if found_chain else offset):
            break  # The log has forgotten whether there was such an epoch.
        found_chain.append((epoch, start))
        if start == 0:
            break
        epoch = before.epoch
    return (*known, *reversed(found_chain))[-CHAIN_MAX:]


def find_divergence(offset: int, chain: EpochChain, begin: int) -> EpochQuestion[int | None]:
    """Where the log stops being the one that had these epochs before `offset`; None: it does not.

    `UNKNOWN_OFFSET`: somewhere before all that the chain tells. `begin` is the log's first offset.
    """
    end = offset
    for epoch, start in reversed(chain):
        found = yield epoch
        is_common = found.epoch == epoch or contains(found, epoch, end)
        if is_common and found.keeps_epochs:
            before = EpochEnd(-1, 0) if epoch == 0 else (yield epoch - 1)
            # What lies before the log's beginning is forgotten.
            is_common = before.end_offset == start or max(before.end_offset, start) <= begin
        if is_common:
            common = min(end, found.end_offset)
            return None if common >= offset else common
        end = min(end, start)
    if not chain:
        return None
    return 0 if chain[0][1] == 0 else UNKNOWN_OFFSET


def answer_all(
    askings: Mapping[K, EpochQuestion[T]], ask: Callable[[Mapping[K, int]], Mapping[K, EpochEnd]]
) -> dict[K, T]:
    """What each of them returns, with one call of `ask` for a question of all."""
    rounds = rounds_of(askings)
    try:
        wanted = next(rounds)
        while True:
            wanted = rounds.send(ask(wanted))
    except StopIteration as end:
        found: dict[K, T] = end.value
        return found


def rounds_of(
    askings: Mapping[K, EpochQuestion[T]],
) -> Generator[Mapping[K, int], Mapping[K, EpochEnd], dict[K, T]]:
    """The same for who asks in another way: yields what is asked, is sent the answers."""
    results: dict[K, T] = {}
    answers: Mapping[K, EpochEnd | None] = dict.fromkeys(askings)
    while True:
        wanted: dict[K, int] = {}
        for key, answer in answers.items():
            try:
                # The first one is `send(None)`, which begins.
                wanted[key] = askings[key].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                results[key] = end.value
        if not wanted:
            return results
        answers = yield wanted
