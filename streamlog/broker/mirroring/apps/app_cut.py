"""AppCut: where the mirrors of an app are cut, so that each transaction is whole or absent.

A link copies each partition independently. When the source is lost, one mirror may have a
transaction's marker while another one lacks it, and a group's position may be ahead of the records
that led to it. The cut is an offset in each partition that the app writes. A transaction is *in* if

- its marker is below the cut in all partitions that it has written to,
- what it has read is there, and committed: no position that it commits is above the last stable
  offset at the cut. It is not enough that the position is below the end: 1. A transaction writes
  offsets 0 to 9 of a repartition topic, and commits by a marker at 10. 2. A reader takes 0 to 4 and
  commits position 5 in its own transaction. 3. The first transaction is cut off at 10. Position 5
  is below that, but promotion aborts the five records, and the app writes them once more,
- all earlier transactions of its producer are in.

Where a transaction that is not in has a marker, the log is cut before the marker; its records stay,
and promotion aborts them. Such a cut makes other transactions fall out, and so on until nothing
changes. Of all consistent cuts, this is the greatest. There is a greatest one, because of two
consistent cuts, the later end in each partition is a consistent cut, too.

Pure. A producer's id and epoch name a transaction in all partitions, since the coordinator begins
an epoch with each transaction (KIP-890, `transaction.version` 2); the epoch is that of the marker.
`PartitionScan` refuses producers without such epochs.

Not done here: reading the mirrors, and cutting them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from streamlog.errors import LogError

Where = tuple[str, int]
"""A topic and a partition."""
TransactionName = tuple[int, int]
"""The producer's id, and the epoch of the markers."""
NO_TRANSACTION: TransactionName = -1, -1


class Span(msgspec.Struct, frozen=True):
    """The part of a transaction in one partition of a mirror."""

    name: TransactionName
    first: int
    """The offset of its first record; that of the marker if it has none."""
    marker: int | None
    """The offset of its marker; None if the mirror does not have it."""
    commits: bool = False


class PartitionHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The transactions in one partition of a mirror."""

    end: int
    spans: tuple[Span, ...] = ()
    is_cut: bool = True
    """Whether the app writes here. What others write is not cut, even if the app lacks some."""
    whole_below: int = 0
    """Markers below are of transactions that the log of transactions here tells, or that had ended
    everywhere at the source: its log of transactions is compacted, and the first copy of it lacks
    what ended before. So it is an end that the source had after that first copy was complete, and
    counts once the copy has come to an end that the source's log of transactions had later."""


class LoggedTransaction(msgspec.Struct, frozen=True):
    """An ended transaction, as the source's log of transactions describes it."""

    partitions: Collection[Where]
    commits: bool


class Positions(msgspec.Struct, frozen=True):
    """Positions of a group that a transaction commits."""

    group: str
    where: Where
    """The partition of the source's `__consumer_offsets`."""
    offsets: Mapping[Where, int]


class AppHistory(msgspec.Struct, frozen=True, kw_only=True):
    """What the mirrors of an app have."""

    partitions: Mapping[Where, PartitionHistory]
    transactions: Mapping[TransactionName, LoggedTransaction]
    positions: Mapping[TransactionName, Collection[Positions]] = msgspec.field(default_factory=dict)
    left_out: Collection[str] = ()
    """Topics that the link does not mirror, so that nothing is to be whole in them."""


class AppCut(msgspec.Struct, frozen=True, kw_only=True):
    """The cut."""

    ends: Mapping[Where, int]
    """For each partition that the app writes to."""
    positions: Mapping[tuple[str, Where], int]
    """Of each group, by the last transaction that is in."""
    committed_by: Mapping[tuple[str, Where], TransactionName]
    """That transaction."""
    stable: Mapping[Where, int]
    """The last stable offset of each partition at the cut."""
    out: Mapping[TransactionName, str]
    """The committed transactions that are not in, and why."""


def unfinished(history: AppHistory) -> list[Where]:
    """Return the partitions that have never been copied whole: without them, there is no cut."""
    return [
        where for where, each in sorted(history.partitions.items()) if each.end < each.whole_below
    ]


def cut_app(history: AppHistory) -> AppCut:
    """Return the greatest consistent cut.

    Raises:
        LogError: a partition has never been copied whole.
    """
    if missing := unfinished(history):
        topic, number = missing[0]
        raise LogError(
            f"{len(missing)} partitions, such as {topic}-{number}, have not been copied once, so"
            " that an app can't be cut consistently: promote its topics without --app"
        )
    falling = _FallingCut(history)
    while falling.falls():
        pass
    committed = falling.positions()
    return AppCut(
        ends=falling.ends,
        positions={key: offset for key, (_, offset, _) in committed.items()},
        committed_by={key: name for key, (_, _, name) in committed.items()},
        stable={where: falling.stable_end(where) for where in history.partitions},
        out=falling.out,
    )


class _FallingCut:
    """A cut that falls from the ends of the mirrors."""

    def __init__(self, history: AppHistory) -> None:
        self._history = history
        self.ends = {where: each.end for where, each in history.partitions.items() if each.is_cut}
        self.out: dict[TransactionName, str] = {}
        ended = [
            (where, span, span.marker)
            for where, partition in history.partitions.items()
            for span in partition.spans
            if span.marker is not None
        ]
        self._markers: dict[TransactionName, dict[Where, int]] = {}
        for where, span, marker in ended:
            self._markers.setdefault(span.name, {})[where] = marker
        self._aborted = {name for name, each in history.transactions.items() if not each.commits}
        self._aborted |= {span.name for _, span, _ in ended if not span.commits}
        self._written = {**dict(self._implied()), **history.transactions}
        # The app's, in the order of each producer: those that it can be cut before.
        self._names = sorted(
            name
            for name in {*self._markers, *self._written} - self._aborted
            if any(where in self.ends for where in self._touched(name))
        )

    def _implied(self) -> Iterable[tuple[TransactionName, LoggedTransaction]]:
        """Return the transactions that markers tell of, where the log of transactions does not."""
        partitions = self._history.partitions
        for name, markers in self._markers.items():
            # All of its markers are here: it had ended before the first copy was complete.
            if all(marker < partitions[where].whole_below for where, marker in markers.items()):
                yield name, LoggedTransaction([*markers], commits=True)

    def _touched(self, name: TransactionName) -> set[Where]:
        written = self._written.get(name)
        logged = () if written is None else written.partitions
        return {*logged, *self._markers.get(name, ())}

    def falls(self) -> bool:
        """Let transactions fall out; return whether any did."""
        stable = {where: self.stable_end(where) for where in self._history.partitions}
        before = len(self.out)
        last_out = None
        for name in self._names:
            why = self.out.get(name)
            if why is None and last_out == name[0]:
                why = "one of its producer before it is not here"
            why = why or next(self._reasons(name, stable), None)
            if why is not None:
                last_out = name[0]
                self._leave(name, why)
        return len(self.out) > before

    def _end(self, where: Where) -> int:
        return self.ends.get(where, self._history.partitions[where].end)

    def stable_end(self, where: Where) -> int:
        """Return the last stable offset of a partition at the cut."""
        end = self._end(where)
        left_open = (
            each.first
            for each in self._history.partitions[where].spans
            if (each.marker is None or each.marker >= end) and each.name not in self._aborted
        )
        return min(end, min(left_open, default=end))

    def _reasons(self, name: TransactionName, stable: Mapping[Where, int]) -> Iterator[str]:
        """Yield why a transaction is not in."""
        history = self._history
        written = self._written.get(name)
        if written is None:
            yield "the log of transactions has not been copied so far"
            return
        markers = self._markers.get(name, {})
        for where in written.partitions:
            if where[0] in history.left_out:
                continue
            marker = markers.get(where)
            if marker is None or marker >= self._end(where):
                yield f"its end in {_text(where)} is not here"
        for each in history.positions.get(name, ()):
            for where, offset in each.offsets.items():
                if where[0] not in history.left_out and offset > stable.get(where, 0):
                    yield f"not all is here that it has read from {_text(where)}"

    def _leave(self, name: TransactionName, why: str) -> None:
        self.out[name] = why
        for where, marker in self._markers.get(name, {}).items():
            if where in self.ends:
                self.ends[where] = min(self.ends[where], marker)

    def positions(self) -> dict[tuple[str, Where], tuple[int, int, TransactionName]]:
        """Return where each group stands at the cut: after which marker, at which offset, by whom.

        A transaction that commits the position that the group already had counts, too: the metadata
        that it commits may differ.
        """
        found: dict[tuple[str, Where], tuple[int, int, TransactionName]] = {}
        for name in self._names:
            if name in self.out:
                continue
            for each in self._history.positions.get(name, ()):
                # Of two producers, the one that committed later in the group's partition counts.
                at = self._markers[name].get(each.where, -1)
                for where, offset in each.offsets.items():
                    key = each.group, where
                    last = found.get(key, (-1, -1, NO_TRANSACTION))
                    found[key] = max(last, (at, offset, name))
        return found


def _text(where: Where) -> str:
    return f"{where[0]}-{where[1]}"


class PartitionScan:
    """Finds the transactions in a partition of a mirror, from its batches in their order.

    Args:
        names_matter: whether a cut may lie before one of them. Where none may, only the starts of
            open transactions count, and they need no names.
    """

    def __init__(self, *, names_matter: bool = True) -> None:
        self._names_matter = names_matter
        self.nameless: LogError | None = None
        """Why transactions here have no names, if that did not matter."""
        self._ended: list[Span] = []
        self._open: dict[int, tuple[int, int]] = {}
        """By producer: the epoch that it writes with, and the first offset of its transaction."""

    def on_records(self, producer_id: int, epoch: int, offset: int) -> None:
        """Note a batch of a transaction that begins at `offset`."""
        self._open.setdefault(producer_id, (epoch, offset))

    def on_marker(self, producer_id: int, epoch: int, offset: int, *, commits: bool) -> None:
        """Note a marker.

        Raises:
            LogError: the producer commits several transactions in one epoch.
        """
        before, first = self._open.pop(producer_id, (epoch - 1, offset))
        # An aborted one needs no name: a fencing coordinator of version 1 begins an epoch, too.
        if commits and before == epoch:
            self.nameless = LogError(
                f"producer {producer_id} commits several transactions in epoch {epoch}, so they"
                " can't be told apart: the source needs transaction.version 2, and the producer"
                " needs a client that supports it"
            )
            if self._names_matter:
                raise self.nameless
        self._ended.append(Span((producer_id, epoch), first, offset, commits))

    def spans(self) -> tuple[Span, ...]:
        """Return the transactions that were found, those that are still open last."""
        # The marker that is missing will have the next epoch.
        left = (
            Span((producer_id, epoch + 1), first, None)
            for producer_id, (epoch, first) in self._open.items()
        )
        return (*self._ended, *left)
