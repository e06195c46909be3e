"""Segments: the chain of segments of one log, oldest first, and when the last one is rolled.

Each segment begins where the one before it ends; the last one is appended to. Sealed segments are
examined when they are first needed, so a log of a thousand segments opens as fast as one of two.

A segment is rolled as in Kafka: when it or its index would grow too large, when its offsets are
too far from its base, or when a record arrives that is `segment.ms` newer than its first one.
Records without a timestamp are judged by how long the segment has been written to. One produce
request can reach a thousand partitions whose `segment.ms` ends together, so `RollBudget` limits
the rolls by time per request; the rest follows in portions between requests. A full segment always
rolls at once.

Rule of this module: the chain in memory changes after the files have, and only as a whole, so a
reader finds segments that follow each other. System errors are raised as they are:
`partition_log` says what they mean for the log, `recovery` what a damaged end means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from streamlog import repeated
from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import Files
from streamlog.broker.storage.log import recovery
from streamlog.broker.storage.log.producer_states import Decided, OpenTransactions
from streamlog.broker.storage.log.segment import Damage, Segment
from streamlog.broker.storage.log.swap import CLEANED_SUFFIX, Link, Swap, begin_swap, chain_of
from streamlog.errors import CorruptData, UnknownTopicOrPartition
from streamlog.records.batch import LogRecord, RecordBatch, newest_timestamp_ms

ROLLS_AT_ONCE = 4

Log = TypeVar("Log")


class RollBudget(Generic[Log]):
    """What the logs of one directory share; times are monotonic."""

    def __init__(self) -> None:
        self._now_ms = -1
        self._left = 0
        self._postponed: deque[Log] = deque()
        self._waiting: set[int] = set()

    def take(self, log: Log, now_ms: int) -> bool:
        """Whether the log may roll now; if not, it is one of those that are `due`."""
        if now_ms != self._now_ms:
            self._now_ms, self._left = now_ms, ROLLS_AT_ONCE
        if self._left > 0:
            self._left -= 1
            return True
        if id(log) not in self._waiting:
            self._waiting.add(id(log))
            self._postponed.append(log)
        return False

    @property
    def is_due(self) -> bool:
        """Whether there are logs that were to wait."""
        return bool(self._postponed)

    def due(self) -> list[Log]:
        """The next portion of those."""
        logs = [self._postponed.popleft() for _ in range(min(ROLLS_AT_ONCE, len(self._postponed)))]
        self._waiting.difference_update(map(id, logs))
        return logs


class Rolling(Generic[Log]):
    """Of one log; `budget` is what it shares with others, if it does. Times are monotonic."""

    def __init__(self, log: Log, budget: RollBudget[Log] | None) -> None:
        self._log = log
        self._budget = budget
        self._opened_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """A segment gets its first batch now, or was sealed although nothing came."""
        self._opened_ms = now_ms

    def due(
        self,
        segment: Segment,
        config: TopicConfig,
        size_bytes: int,
        batches: Sequence[RecordBatch],
        *,
        now_ms: int,
    ) -> bool:
        """Whether the segment is to be sealed before these batches, of so many bytes."""
        if segment.size_bytes == 0:
            return False
        if segment.full(size_bytes, batches, config):
            return True
        if not self.is_time(segment, config, newest_timestamp_ms(batches), now_ms=now_ms):
            return False
        return self._budget is None or self._budget.take(self._log, now_ms)

    def is_time(
        self, segment: Segment, config: TopicConfig, newest_ms: int, *, now_ms: int
    ) -> bool:
        """Whether a record of that time would be too much newer than the first one."""
        if segment.first_timestamp_ms >= 0:
            return newest_ms - segment.first_timestamp_ms > config.roll_ms
        if self._opened_ms is None:
            self._opened_ms = now_ms
        return now_ms - self._opened_ms > config.roll_ms


DAMAGE_LOGGED_MAX = 1000
"""Damaged places of one log that are told; whoever has more should look with `log verify`."""

Replay = Callable[[RecordBatch, int], Decided | None]
"""What is told of every batch and its base offset, and says which transaction it has ended."""

_logger = repeated.logger(__name__)


class Segments:
    """The segments of the log in `directory`; before anything else, `add` or `find` is called.

    `name` is what errors call the log. Everything raises OSError when the system refuses.
    """

    active: Segment
    """The last one: it is appended to."""

    def __init__(
        self, files: Files, directory: str, *, name: str, config: TopicConfig, read_only: bool
    ) -> None:
        self.config = config
        """For segments that are made from now on."""
        self.unsynced: list[Segment] = []
        """Those that are sealed and may not be on disk, in order."""
        self.names_are_due = False
        """Whether a segment was begun whose name may not be on disk."""
        self._files = files
        self._directory = directory
        self._name = name
        self._read_only = read_only
        self._chain: list[Segment] = []
        self._bases: list[int] = []
        self._owing: list[Segment] = []
        self._told: set[str] = set()
        self._on_damage: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Segment]:
        """All of them, looked at as they are reached."""
        return (self._loaded(number) for number in range(len(self._chain)))

    # Opening.

    def find(self, start_offset: int) -> None:
        """Take what is in the directory; what is before `start_offset` was deleted, and goes."""
        names = self._files.list(self._directory)
        found = [self._linked(link) for link in chain_of(names)]
        if not self._read_only:
            # Files that were to be deleted and not even renamed.
            while len(found) > 1 and found[1].base_offset <= start_offset:
                found.pop(0).remove()
        if not found:
            found = [self._new(start_offset)]
            if not self._read_only:
                found[0].create()
        self._take(found)

    def ends_whole(self) -> bool:
        """Whether the last segment, as far as it is looked at, ends with a whole batch."""
        last = self.active
        if not last.load() or last.trailing_bytes:
            return False
        # An empty file behind others may be what a roll left that had failed.
        return last.size_bytes > 0 or len(self._chain) == 1

    def recover(self, recovery_point: int) -> recovery.Recovery:
        """Scan what may be torn; see `recovery`."""
        chain = list(self._chain)
        found = recovery.recover(chain, recovery_point=recovery_point)
        self._take(chain)
        return found

    def begin_again(self, offset: int) -> None:
        """Remove all of them, and go on with an empty one at `offset`."""
        for segment in reversed(self._chain):
            segment.remove()
        self._chain, self._bases, self.unsynced = [], [], []
        self.add(offset)

    def truncate(self, offset: int) -> None:
        """Take everything from the batch with `offset` in it on away, durably; the newest first."""
        kept = max(bisect_left(self._bases, offset), 1)
        last = self._loaded(kept - 1)
        while len(self._chain) > kept:
            self._chain[-1].remove()
            self._take(self._chain[:-1])
        if offset < last.next_offset:
            end = last.position_of(offset) if offset > last.base_offset else 0
            last.close()
            last.rescan(end)
            last.aborted.distrust()
            last.cut()
        last.unseal()
        last.linked()
        for segment in self.unsynced:
            if segment in self._chain[:-1]:
                segment.sync()
        last.sync()
        self.unsynced = []
        self.sync_names()
        self.names_are_due = False

    # Indexes for which there was no room.

    def note_unwritten_indexes(self, found: Sequence[Segment]) -> None:
        """Of these, which a recovery has scanned, some may have entries in memory only."""
        self._owing = [segment for segment in found if segment.has_unwritten_indexes]

    @property
    def has_unwritten_indexes(self) -> bool:
        """Whether the indexes of some are in memory only."""
        return bool(self._owing)

    @property
    def first_unwritten_index(self) -> int | None:
        """Where the first sealed segment begins whose indexes are not on disk; None: all are."""
        sealed = (each for each in self._owing if each is not self.active)
        return next((each.base_offset for each in sealed), None)

    def settle_indexes(self) -> None:
        """Write what there was no room for, as more is about to be appended."""
        for segment in self._owing:
            if segment is self.active:
                segment.trim_indexes()
            else:
                segment.keep_indexes()
        self._owing = []

    # Growing and shrinking.

    @property
    def has_unsynced(self) -> bool:
        """Whether something other than the active segment may not be on disk."""
        return bool(self.unsynced) or self.names_are_due

    def add(self, base_offset: int, *, durable: bool = True) -> None:
        """Begin a segment, which is the active one from now on.

        If it is not to be durable by itself, its name is brought to disk by `sync_names`, before
        anything in it is said to be.
        """
        segment = self._new(base_offset)
        try:
            segment.create()
            if durable:
                self.sync_names()
        except OSError:
            # Or the next clean opening would take it for the end of the log.
            segment.remove()
            raise
        self.names_are_due = not durable
        self._take([*self._chain, segment])

    def sync_names(self) -> None:
        """Bring the names of all of them to disk; callable from any thread."""
        self._files.sync_directory(self._directory)

    def note_named(self, synced: bool, base_offset: int) -> None:  # noqa: FBT001 - a state, not a switch
        """The names of all segments up to the one at `base_offset` are on disk, if `synced`."""
        if synced and base_offset == self.active.base_offset:
            self.names_are_due = False

    def epochs(self) -> Iterator[tuple[int, int]]:
        """Leader epoch and base offset of every batch, as far as headers are sound."""
        for segment in self:
            yield from segment.epochs()

    @property
    def newest_epoch(self) -> int:
        """Of the batches that were looked at so far; -1 if there was none."""
        return max(segment.leader_epoch for segment in self._chain)

    def rewrite_unsynced(self, of: recovery.Recovery, offset: int) -> list[Segment]:
        """Those that a recovery has found unsynced, from `offset` on written once more."""
        found = self.last(of.unsynced_segments)
        for segment in found:
            recovery.rewrite(self._files, segment, offset)
        return found

    def last(self, count: int) -> list[Segment]:
        """The newest ones, as they are."""
        return self._chain[-count:]

    def sealed_before(self, offset: int) -> Iterator[Segment]:
        """The sealed segments that end at `offset` at the latest, looked at as they are reached.

        Between two of them the chain may change; then they are those up to the change at least.
        """
        base = self._bases[0]
        while True:
            number = bisect_left(self._bases, base)
            if self._bases[number : number + 1] != [base] or number + 1 == len(self._bases):
                return
            base = self._bases[number + 1]
            if base > offset:
                return
            yield self._loaded(number)

    def base_offset(self, number: int) -> int:
        """Where one of them begins; the oldest has number 0."""
        return self._bases[number]

    def count_before(self, offset: int) -> int:
        """How many, from the oldest on, have nothing from `offset` on; the active one included."""
        return bisect_right([*self._bases[1:], self.active.next_offset], offset)

    def has_first_before(self, offset: int) -> bool:
        """Whether the oldest segment is sealed and has nothing from `offset` on."""
        return len(self._bases) > 1 and self._bases[1] <= offset

    def retire_first(self) -> list[str]:
        """Take the oldest segment out by renaming its files; returns what is to be removed."""
        first = self._chain[0]
        renamed = first.retire()
        self._take(self._chain[1:])
        self.unsynced = [segment for segment in self.unsynced if segment is not first]
        return renamed

    def unfinished(self, base_offset: int) -> Segment:
        """A segment to be made and filled, which is none of the log's yet."""
        return self._new(base_offset, suffix=CLEANED_SUFFIX)

    def place_of(self, replaced: Sequence[Segment]) -> slice:
        """Where in the chain these segments follow each other.

        Raises:
            UnknownTopicOrPartition: one of them is gone.
        """
        first = bisect_right(self._bases, replaced[0].base_offset) - 1
        place = slice(first, first + len(replaced))
        if self._chain[place] != list(replaced):
            raise UnknownTopicOrPartition(f"{self._name}: what was cleaned is gone")
        return place

    def swap(self, place: slice, cleaned: Segment) -> Swap:
        """Let `cleaned`, which is on disk, count there; after an error nobody knows what does."""
        chain = list(self._chain)
        begun = begin_swap(self._files, self._directory, cleaned, chain[place])
        replaced = chain[place]
        chain[place] = [cleaned]
        self._take(chain)
        for segment in replaced:
            segment.close()
        return begun

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._chain

    def close(self) -> None:
        """Close the files that are open."""
        for segment in self._chain:
            segment.close()

    # What is in them.

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches, as far as segments have been looked into."""
        return sum(segment.size_bytes for segment in self._chain)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged places that are known."""
        return tuple(place for segment in self._chain for place in segment.damage)

    def segment_of(self, offset: int) -> Segment:
        """The segment that has `offset`, its end known.

        Raises:
            CorruptData: the first segments are missing.
        """
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            raise CorruptData(
                f"{self._name}: offsets before {self._bases[0]} are missing: there the"
                f" first file in {self._directory} begins"
            )
        return self._loaded(number)

    def reaching(self, offset: int) -> Iterator[Segment]:
        """The segment that has `offset`, or the first one if none does, and all behind it."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        return (self._loaded(number) for number in range(first, len(self._chain)))

    def first_not_before(self, timestamp_ms: int, start_offset: int) -> LogRecord | None:
        """The first record from `start_offset` on that is not older; None if all are.

        Raises:
            CorruptData: a batch on the way is damaged.
        """
        for segment in self:
            record = segment.first_not_before(timestamp_ms, start_offset)
            if record is not None:
                return record
        return None

    def newest(self, start_offset: int) -> LogRecord | None:
        """The first of the records with the greatest timestamp; None if none has one.

        Raises:
            CorruptData: its batch is damaged.
        """
        return max(self, key=_max_timestamp_ms).newest(start_offset)

    def aborted(self, offset: int, end_offset: int) -> list[Decided]:
        """The aborted transactions with records from `offset` to before `end_offset`.

        Raises:
            CorruptData: an index has to be built anew, and the log is damaged.
        """
        found: list[Decided] = []
        for segment in self._chain[max(bisect_right(self._bases, offset) - 1, 0) :]:
            if not (segment.aborted.is_known or segment.aborted.load(segment.base_offset)):
                self.replay(self._bases[0], OpenTransactions().take)
            here, complete = segment.aborted.overlapping(offset, end_offset)
            found += here
            if complete:
                break
        return found

    @property
    def distrusted_offset(self) -> int | None:
        """Where the first segment begins whose index of aborted transactions has to be rebuilt."""
        chain = self._chain
        return next((each.base_offset for each in chain if each.aborted.is_distrusted), None)

    def replay(self, offset: int, take: Replay) -> None:
        """Give `take` every batch from `offset` on, in order.

        What it says has been aborted becomes the index of a segment that has no sound one.
        """
        for segment in self.reaching(offset):
            aborted: list[Decided] = []
            for batch in segment.batches(offset):
                decided = take(batch, batch.base_offset)
                if decided is not None and decided.aborted:
                    aborted.append(decided)
            if segment.aborted.is_distrusted:
                segment.aborted.rebuild(aborted)
                segment.write_if_space(segment.aborted.flush)

    def report(self, found: recovery.Recovery) -> None:
        """Say what opening the log took, if it has lost anything."""
        if found.truncated_bytes:
            _logger.warning(
                "%s: cut %d bytes of an unfinished write off the end of the log; it ends at offset"
                " %d",
                self._name,
                found.truncated_bytes,
                self.active.next_offset,
            )
        for place in found.damage:
            self.tell(str(place))

    def tell(self, damage: str) -> None:
        """Say where a place is damaged, once and not to everyone who reads there.

        A reader beside the broker does not: it may be the files that change.
        """
        if self._read_only:
            return
        if damage not in self._told and len(self._told) < DAMAGE_LOGGED_MAX:
            self._told.add(damage)
            _logger.error("%s", damage)

    def watch_damage(self, on_damage: Callable[[], None]) -> None:
        """Have it called by any thread that finds some from now on."""
        self._on_damage = on_damage

    # Within.

    def _take(self, chain: list[Segment]) -> None:
        self._chain = chain
        self._bases = [segment.base_offset for segment in chain]
        self.active = chain[-1]
        if self._owing:
            self._owing = [segment for segment in self._owing if segment in chain]

    def _found_damage(self) -> None:
        if self._on_damage is not None:
            self._on_damage()

    def _new(self, base_offset: int, *, suffix: str = "") -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            index_bytes_max=self.config.segment_index_bytes,
            partition=self._name,
            read_only=self._read_only,
            suffix=suffix,
            on_damage=self._found_damage,
        )

    def _linked(self, link: Link) -> Segment:
        segment = self._new(link.base_offset, suffix=link.index_suffix)
        segment.path = f"{self._directory}/{link.log}"
        return segment

    def _loaded(self, number: int) -> Segment:
        segment = self._chain[number]
        if not segment.loaded:
            recovery.load_sealed(segment, self._bases[number + 1])
            for place in segment.damage:
                self.tell(str(place))
        return segment


def _max_timestamp_ms(segment: Segment) -> int:
    return segment.max_timestamp_ms
