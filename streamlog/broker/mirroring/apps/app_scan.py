"""AppScan: which parts of a link's mirrors tell of an app, and what they tell.

1. The log of transactions is read from its start: all but its last day is compacted.
2. The partition of the committed offsets that has the app's group is read from its start: a
   position of the group may have been committed long ago.
3. The partitions of the app's topics are read from the last mark on (`app_marks`).

Names tell what the app owns. Producers tell what else it writes: their transactional ids begin with
its id and a hyphen, as those of Kafka Streams do, or they commit positions of its group. Other
producers of these topics count as the app's. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from streamlog.broker.mirroring.apps.app_cut import (
    AppCut,
    AppHistory,
    LoggedTransaction,
    PartitionHistory,
    Span,
    TransactionName,
    Where,
    cut_app,
)
from streamlog.broker.mirroring.apps.app_history import (
    Committed,
    PositionLog,
    SpanReader,
    TransactionLog,
)
from streamlog.broker.mirroring.link_plan import POSITIONS_LOG, TRANSACTION_LOG, own_topics
from streamlog.errors import LogError
from streamlog.protocol.messages.metadata_log import MarkedPartition

_OTHERWISE = (
    "there is no consistent cut. `promote --now` without --app takes each topic as far as it is"
    " here: the app may then count the last moments twice, or not at all"
)


class AppScan:
    """The scan of one app's mirrors.

    Args:
        app: its id.
        topics: the numbers of partitions of what the link mirrors, by topic.
        home: the partition of the committed offsets that has the app's group.
        mark: the link's last mark.
        is_alone: whether the link has no other app, so that all that it mirrors is for this one.

    Raises:
        LogError: there is no mark.
    """

    def __init__(
        self,
        app: str,
        topics: Mapping[str, int],
        *,
        home: int,
        mark: Collection[MarkedPartition],
        is_alone: bool,
    ) -> None:
        if not mark:
            raise LogError(
                f"app {app} has not been copied as a whole once, or its link may not read"
                f" {TRANSACTION_LOG} and {POSITIONS_LOG} of the source (`streamlog mirror describe`"
                f" tells why): {_OTHERWISE}"
            )
        self._app = app
        self._topics = topics
        self._is_alone = is_alone
        self._marks = {(each.topic, each.partition): each for each in mark}
        self._logs = {
            number: TransactionLog(each, app)
            for (topic, number), each in self._marks.items()
            if topic == TRANSACTION_LOG
        }
        self.home: Where = POSITIONS_LOG, home
        """The partition of the committed offsets that has the app's group."""
        self.positions = PositionLog(self.home, self._mark(self.home).scan_from, app)
        """Reads the committed offsets."""
        self._readers: dict[Where, SpanReader] = {}
        self._transactions: dict[TransactionName, LoggedTransaction] = {}
        self._from_start = False
        self._producers: set[int] = set()
        self._written: set[str] = set()

    def _mark(self, where: Where) -> MarkedPartition:
        return self._marks.get(where, MarkedPartition())

    @property
    def transaction_logs(self) -> Mapping[int, TransactionLog]:
        """The readers of the log of transactions, by partition; they come first."""
        return self._logs

    def on_transactions(self) -> None:
        """Note that the log of transactions was read; `positions` come next.

        Raises:
            LogError: it has gaps.
        """
        gaps = [number for number, each in self._logs.items() if each.has_gap]
        if gaps:
            raise LogError(
                f"compaction has removed records of {TRANSACTION_LOG}-{gaps[0]}, at the source"
                f" before they were copied, or here since: {_OTHERWISE}"
            )
        for log in self._logs.values():
            self._transactions |= {
                name: LoggedTransaction(
                    # Positions of other groups are not this app's.
                    [each for each in logged.partitions if self._counts(each)],
                    logged.commits,
                )
                for name, logged in log.transactions().items()
            }
            # A transaction that took longer than from one mark to the next: its first markers may
            # be anywhere.
            self._from_start |= any(
                topic in self._topics
                for name in log.unsettled
                for topic, _ in self._transactions[name].partitions
            )
        if self._from_start:
            # 1. Transaction 1 has its marker in a repartition topic, and none in a changelog yet.
            # 2. Transaction 2 reads from it, and ends; then there is a mark. 3. The source is lost
            # before the marker of 1 is copied. 2 is older than the mark, and not whole without 1.
            self.positions = PositionLog(self.home, 0, self._app)

    def _counts(self, where: Where) -> bool:
        return where[0] != POSITIONS_LOG or where == self.home

    def scan_from(self, where: Where) -> int:
        """Return the offset from which a partition has to be read for its transactions."""
        return 0 if self._from_start else self._mark(where).scan_from

    def on_positions(self) -> None:
        """Note that the committed offsets were read; now it is known what belongs to the app."""
        self._producers = {producer_id for producer_id, _ in self.positions.by_transaction}
        self._producers.update(*(each.producers for each in self._logs.values()))
        written = {
            topic
            for (producer_id, _), each in self._transactions.items()
            if producer_id in self._producers
            for topic, _ in each.partitions
        }
        written.update(*(log.written for log in self._logs.values()))
        self._written = own_topics([self._app], self._topics) | (written & self._topics.keys())

    @property
    def promoted(self) -> list[str]:
        """The topics that become this cluster's: what the app owns, writes and reads."""
        if self._is_alone:
            return sorted(self._topics)
        read = {topic for _, (topic, _) in self._stands()}
        return sorted(self._written | (read & self._topics.keys()))

    def _stands(self) -> set[tuple[str, Where]]:
        """Return the partitions in which the group has positions."""
        found = {*self.positions.before}
        for parts in self.positions.by_transaction.values():
            found.update((each.group, where) for each in parts for where in each.offsets)
        return found

    def readers(self) -> Mapping[Where, SpanReader]:
        """Return the readers of the partitions to scan, for what comes from `scan_from` on."""
        self._readers = {
            (topic, number): SpanReader(names_matter=False)
            for topic in self.promoted
            for number in range(self._topics[topic])
        }
        self._readers[self.home] = SpanReader(names_matter=False)
        return self._readers

    def cut(self, ends: Mapping[Where, int]) -> AppCut:
        """Return the cut.

        Args:
            ends: where the mirrors end, those of the log of transactions and of `home` too.

        Raises:
            LogError: there is none.
        """
        spans = {where: reader.spans() for where, reader in self._readers.items()}
        self._add_written(spans)
        for (topic, _), reader in self._readers.items():
            # Where the app only reads, nothing is cut: what is open is all that counts.
            if topic in self._written:
                reader.check_names()
        found = cut_app(self._history(ends, spans))
        kept = {where: end for where, end in found.ends.items() if where != self.home}
        return AppCut(
            ends=kept,
            positions=found.positions,
            committed_by=found.committed_by,
            stable=found.stable,
            out=found.out,
        )

    def _add_written(self, spans: Mapping[Where, Collection[Span]]) -> None:
        """Add topics that the app has written, although the log of transactions lacks that yet."""
        self._written |= {
            topic
            for (topic, _), each in spans.items()
            if topic in self._topics and any(span.name[0] in self._producers for span in each)
        }

    def _history(
        self, ends: Mapping[Where, int], found: Mapping[Where, tuple[Span, ...]]
    ) -> AppHistory:
        partitions = {
            (TRANSACTION_LOG, number): PartitionHistory(
                end=ends[TRANSACTION_LOG, number],
                is_cut=False,
                whole_below=self._mark((TRANSACTION_LOG, number)).whole_below,
            )
            for number in self._logs
        }
        for where, spans in found.items():
            counted = tuple(self._of_app(spans)) if where == self.home else spans
            partitions[where] = PartitionHistory(
                end=ends[where],
                spans=counted,
                is_cut=where == self.home or where[0] in self._written,
                whole_below=self._whole_below(where, ends[where], spans),
            )
        named = {topic for each in self._transactions.values() for topic, _ in each.partitions}
        named |= {topic for _, (topic, _) in self._stands()}
        return AppHistory(
            partitions=partitions,
            transactions=self._transactions,
            positions=self.positions.by_transaction,
            left_out=named - {topic for topic, _ in partitions},
        )

    def _of_app(self, spans: Collection[Span]) -> Iterator[Span]:
        """Yield the app's transactions among those in the committed offsets.

        Other groups' transactions there may be incomplete, and must not drag the app's out.
        """
        for span in spans:
            logged = self._transactions.get(span.name)
            is_writer = logged is not None and any(
                topic in self._written for topic, _ in logged.partitions
            )
            if is_writer or span.name in self.positions.by_transaction:
                yield span

    def _whole_below(self, where: Where, end: int, spans: Collection[Span]) -> int:
        if where in self._marks:
            return self._marks[where].whole_below
        # New since the mark. Either the source has just created it, and the log of transactions
        # tells all that is in it; or the link is new to it, and has no mark of it yet.
        is_old = any(
            each.marker is not None and each.commits and each.name not in self._transactions
            for each in spans
        )
        return end + 1 if is_old and where[0] in self._written else 0

    def positions_at(self, cut: AppCut) -> dict[Where, Committed]:
        """Return where the app's group stands at a cut, in what is promoted."""
        found: dict[Where, Committed] = {}
        for about in self._stands():
            where = about[1]
            end = cut.stable.get(where)
            if end is None:
                continue
            position = self.positions.before.get(about)
            if about in cut.positions:
                text = self.positions.texts[cut.committed_by[about], about]
                position = Committed(cut.positions[about], text)
            if position is not None:
                # One that was committed outside of a transaction may be ahead.
                found[where] = Committed(min(position.offset, end), position.metadata)
        return found
