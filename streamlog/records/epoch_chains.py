"""Epoch chains: the leader epochs that wrote a log up to an offset, to detect a truncated log.

A log that lost records (unclean leader election, a power cut with `flush=os`, a restored backup)
and has grown again holds other records at equal offsets. Leader epochs reveal that (KIP-320): a
reader keeps the last epochs before its offset, each with its first offset, and later asks where
each epoch ends. No I/O: the generators yield epochs and are sent the answers of
OffsetForLeaderEpoch. `answer_all` and `rounds_of` combine the questions of many partitions.

Compaction: our brokers fill the gaps that it leaves with empty batches of the former epochs, so
an epoch that is missing, or begins at another offset, proves another log. Kafka's brokers don't: a
replica that has copied a compacted log knows an epoch only from its first batch that is left, or
not at all. For such a log only the end of an epoch counts, as for Kafka's consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar

EpochChain: TypeAlias = tuple[tuple[int, int], ...]
"""(epoch, first offset), the oldest first; empty if they are unknown."""
CHAIN_MAX: Final = 16
"""Epochs that are kept. If a log diverges before all of them, the offset is unknown."""
UNKNOWN_OFFSET: Final = -1
LEADER_EPOCH_MAX: Final = 2**31 - 2
"""The highest leader epoch; one more is left for the next start of a broker."""


class EpochEnd(NamedTuple):
    """The largest epoch up to the requested one, and the offset after its last record.

    Both are -1 if the log does not know the epoch. For an epoch that is older than all that the log
    remembers, the end is the log start offset.
    """

    epoch: int
    end_offset: int
    keeps_epochs: bool = True
    """Whether the log keeps every epoch and its first offset when compaction removes records."""


def contains(found: EpochEnd, epoch: int, offset: int) -> bool:
    """Whether a log holds what was read up to `offset`, with the last record in `epoch`.

    `found` is the log's answer for this epoch. An end below the offset is a truncation (KIP-320).
    An earlier epoch is one as well (KIP-595), unless compaction may have removed the epoch:

    1. A log has epoch 1 up to offset 6, epoch 2 up to 9, and epoch 3 since. A reader is at 8.
    2. Compaction removes all records of epoch 2, and a replica copies what is left.
    3. This replica leads and answers for epoch 2: epoch 1, which ends at 9. Nothing is lost.
    """
    return found.end_offset >= offset and (found.epoch == epoch or not found.keeps_epochs)


K = TypeVar("K")
T = TypeVar("T")
EpochQuestion: TypeAlias = Generator[int, EpochEnd, T]
"""A generator that yields epochs, is sent their ends, and returns its result."""


def learn_chain(offset: int, newest: int, known: EpochChain = ()) -> EpochQuestion[EpochChain]:
    """Return the last leader epochs of the records before `offset`.

    Args:
        offset: the offset.
        newest: the epoch of the log's leader; -1 if it is unknown.
        known: the chain of a lower or equal offset in this log, which saves questions.
    """
    known = tuple(entry for entry in known if entry[1] < offset)
    if offset <= 0 or newest < 0:
        return ()
    top = yield newest
    if top.end_offset < offset:
        return ()
    # The record before `offset` was written in the lowest epoch that ends at `offset` or later: a
    # binary search. An answer may name an earlier epoch, which skips epochs that wrote nothing.
    low, high = known[-1][0] if known else 0, top.epoch
    while low < high:
        middle = (low + high) // 2
        found = yield middle
        if found.end_offset >= offset:
            high = max(low, min(found.epoch, middle))
        else:
            low = middle + 1
    # Backwards from there: an epoch begins where the one before it ends.
    found_chain: list[tuple[int, int]] = []
    epoch = high
    while epoch >= 0 and len(found_chain) < CHAIN_MAX:
        if known and epoch == known[-1][0]:
            break
        before = EpochEnd(-1, 0) if epoch == 0 else (yield epoch - 1)
        start = max(before.end_offset, 0)
        if start >= (found_chain[-1][1] if found_chain else offset):
            break  # The log no longer remembers this epoch.
        found_chain.append((epoch, start))
        if start == 0:
            break
        epoch = before.epoch
    return (*known, *reversed(found_chain))[-CHAIN_MAX:]


def find_divergence(offset: int, chain: EpochChain, begin: int) -> EpochQuestion[int | None]:
    """Return the offset at which the log diverges from a chain; None if it does not.

    Args:
        offset: the offset up to which records were read.
        chain: the epochs before it, as `learn_chain` returned them.
        begin: the log start offset now.

    Returns:
        The offset, or `UNKNOWN_OFFSET` if the log diverges before the chain's first epoch.
    """
    end = offset
    for epoch, start in reversed(chain):
        found = yield epoch
        is_common = found.epoch == epoch or contains(found, epoch, end)
        if is_common and found.keeps_epochs:
            before = EpochEnd(-1, 0) if epoch == 0 else (yield epoch - 1)
            # Retention may have moved the log start since: an epoch that began below it now ends
            # there, which is no divergence.
            is_common = before.end_offset == start or max(before.end_offset, start) <= begin
        if is_common:
            common = min(end, found.end_offset)
            return None if common >= offset else common
        # This epoch is not in the log, so the logs differ from its start at the latest.
        end = min(end, start)
    if not chain:
        return None
    return 0 if chain[0][1] == 0 else UNKNOWN_OFFSET


def answer_all(
    askings: Mapping[K, EpochQuestion[T]], ask: Callable[[Mapping[K, int]], Mapping[K, EpochEnd]]
) -> dict[K, T]:
    """Run the questions of many partitions to their end; `ask` gets one round of all at a time."""
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
    """Run the questions of many partitions in rounds: yields the epochs, is sent the answers."""
    results: dict[K, T] = {}
    answers: Mapping[K, EpochEnd | None] = dict.fromkeys(askings)
    while True:
        wanted: dict[K, int] = {}
        for key, answer in answers.items():
            try:
                # The first round sends None, which starts the generator.
                wanted[key] = askings[key].send(answer)  # type: ignore[arg-type]
            except StopIteration as end:
                results[key] = end.value
        if not wanted:
            return results
        answers = yield wanted
