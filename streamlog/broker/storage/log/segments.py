"""Segments: the chain of segments of one log, oldest first, and when the active one is rolled.

Each segment begins where the one before it ends; the last one accepts appends. A sealed segment is
loaded when it is first needed, so a log of a thousand segments opens as fast as one of two.

A segment is rolled as in Kafka: when it or its index would grow too large, when its offsets are
too far from its base, or when a record arrives that is `segment.ms` newer than its first one.
Records without a timestamp are judged by the time since the segment's first append. One produce
request can reach a thousand partitions whose `segment.ms` ends together, so `RollBudget` limits
the rolls by time per request; the others follow in portions between requests. A full segment
always rolls at once.

Rules of this module: the chain in memory changes after the files have, and only as a whole, so a
reader always finds consecutive segments. System errors are raised unchanged: `partition_log`
decides what they mean for the log, `recovery` what a damaged end means.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, TypeVar

from streamlog import repeated
from streamlog.broker.config.broker import TopicConfig
from streamlog.broker.storage.disk.files import Files, parent_of
from streamlog.broker.storage.log import recovery
from streamlog.broker.storage.log.producer_states import EndedTransaction, OpenTransactions
from streamlog.broker.storage.log.record_search import RecordSearch
from streamlog.broker.storage.log.segment import Damage, Segment
from streamlog.broker.storage.log.swap import CLEANED_SUFFIX, Link, Swap, begin_swap, chain_of
from streamlog.errors import CorruptData, UnknownTopicOrPartition
from streamlog.records.batch import LogRecord, RecordBatch, newest_timestamp_ms

ROLLS_AT_ONCE = 4
"""Rolls per request, and per portion between requests."""

Log = TypeVar("Log")


class RollBudget(Generic[Log]):
    """The budget that all logs of a data directory share; times are monotonic, in ms."""

    def __init__(self) -> None:
        self._now_ms = -1
        self._left = 0
        self._queue: deque[Log] = deque()
        self._waiting: set[int] = set()

    def take(self, log: Log, now_ms: int) -> bool:
        """Whether `log` may roll now; if not, it is queued for `due`."""
        # All appends of one request have the same time, so a new time is a new request.
        if now_ms != self._now_ms:
            self._now_ms, self._left = now_ms, ROLLS_AT_ONCE
        if self._left > 0:
            self._left -= 1
            return True
        if id(log) not in self._waiting:
            self._waiting.add(id(log))
            self._queue.append(log)
        return False

    @property
    def is_due(self) -> bool:
        """Whether postponed logs wait to be rolled."""
        return bool(self._queue)

    def due(self) -> list[Log]:
        """Take the next portion of postponed logs."""
        logs = [self._queue.popleft() for _ in range(min(ROLLS_AT_ONCE, len(self._queue)))]
        self._waiting.difference_update(map(id, logs))
        return logs


class Rolling(Generic[Log]):
    """When one log rolls; `budget` is shared with other logs. Times are monotonic, in ms."""

    def __init__(self, log: Log, budget: RollBudget[Log] | None) -> None:
        self._log = log
        self._budget = budget
        self._begin_ms: int | None = None

    def share(self, budget: RollBudget[Log] | None) -> None:
        """Share this budget from now on."""
        self._budget = budget

    def begin(self, now_ms: int) -> None:
        """Note that a segment gets its first batch, or replaces one that was sealed when idle."""
        self._begin_ms = now_ms

    def due(
        self,
        segment: Segment,
        config: TopicConfig,
        size_bytes: int,
        batches: Sequence[RecordBatch],
        *,
        now_ms: int,
    ) -> bool:
        """Whether to seal the segment before these batches of `size_bytes` bytes."""
        # An empty segment is never sealed, or a batch larger than `segment.bytes` would roll
        # forever.
        if segment.size_bytes == 0:
            return False
        if segment.is_full(size_bytes, batches, config):
            return True
        newest_ms, first_ms = newest_timestamp_ms(batches), segment.first_timestamp_ms
        # `roll_ms` is one of the two. Mostly the record is younger than both, which takes no call.
        if (
            first_ms >= 0
            and newest_ms - first_ms <= config.segment_ms
            and newest_ms - first_ms <= config.max_compaction_lag_ms
        ):
            return False
        if not self.is_time(segment, config, newest_ms, now_ms=now_ms):
            return False
        return self._budget is None or self._budget.take(self._log, now_ms)

    def is_time(
        self, segment: Segment, config: TopicConfig, newest_ms: int, *, now_ms: int
    ) -> bool:
        """Whether a record of time `newest_ms` is more than `segment.ms` newer than the first."""
        if segment.first_timestamp_ms >= 0:
            # Record time decides, as in Kafka: a replay of old records rolls as it did live.
            return newest_ms - segment.first_timestamp_ms > config.roll_ms
        if self._begin_ms is None:  # Opened with batches: count from the first append.
            self._begin_ms = now_ms
        return now_ms - self._begin_ms > config.roll_ms


DAMAGE_LOGGED_MAX = 1000
"""Damaged ranges logged per log; `log verify` lists all."""

Replay = Callable[[RecordBatch, int], EndedTransaction | None]
"""Takes a batch and its base offset; returns the transaction that the batch has ended."""

_logger = repeated.logger(__name__)


class Segments:
    """The segments of the log in `directory`; call `add` or `find` first.

    Error messages call the log by `name`. Every method raises OSError when the system refuses.
    """

    active: Segment
    """The last segment, which accepts appends."""

    def __init__(
        self, files: Files, directory: str, *, name: str, config: TopicConfig, read_only: bool
    ) -> None:
        self.config = config
        """The settings of segments created from now on."""
        self.unsynced: list[Segment] = []
        """The sealed segments that may not be on disk, in order."""
        self.has_unsynced_names = False
        """Whether a segment exists whose directory entry may not be on disk."""
        self.is_touched = True
        """Whether what a checkpoint says of the log may have changed since the last one."""
        self.rewrites = 0
        """How often compaction or truncation has changed what lies at offsets that exist."""
        self._files = files
        self._directory = directory
        self._name = name
        self._read_only = read_only
        self._chain: list[Segment] = []
        self._bases: list[int] = []
        self.has_folder = False
        """Whether the directory is known to exist; the first append makes it."""
        self._is_folder_new = False
        """Whether the name of the directory may not be on disk."""
        self._with_unwritten_indexes: list[Segment] = []
        self.has_unwritten_indexes = False
        """Whether a segment has index entries only in memory."""
        self._logged_damage: set[str] = set()
        self._on_damage: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._chain)

    def __iter__(self) -> Iterator[Segment]:
        """Iterate over all segments; each is loaded when it is reached."""
        return (self._load_segment(number) for number in range(len(self._chain)))

    # Opening.

    def find(self, names: Collection[str], start_offset: int) -> None:
        """Find the segments among the names in the directory; remove those below `start_offset`."""
        self.has_folder = bool(names)
        found = [self._open_link(link) for link in chain_of(names)]
        if not self._read_only:
            # Retention made the log start durable and crashed before it renamed these files.
            while len(found) > 1 and found[1].base_offset <= start_offset:
                found.pop(0).remove()
        if found:
            self._take(found)
        else:
            self.begin(start_offset)

    def begin(self, offset: int) -> None:
        """Begin with a segment at `offset`; the first append creates its files and directory."""
        segment = self._new(offset)
        segment.begin()
        self._take([segment])

    def make_folder(self) -> None:
        """Make the directory, before anything is written there; `sync_names` syncs its name."""
        if not self.has_folder:
            # Not its parents: if the data directory is gone, a new one must not take its place.
            self._files.make_directory(self._directory, parents=False)
            self.has_folder = self._is_folder_new = True

    def distrust_names(self) -> None:
        """Note that the names of segments, and that of the directory, may not be on disk."""
        self.has_unsynced_names = self._is_folder_new = True

    def trust_names(self) -> None:
        """Note that all names are on disk."""
        self.has_unsynced_names = self._is_folder_new = False

    def ends_whole(self) -> bool:
        """Whether the last segment, read from its newest index entry, ends with a whole batch."""
        last = self.active
        if not last.load() or last.trailing_bytes:
            return False
        # An empty last file may be left by a roll that failed after it created the file.
        return last.size_bytes > 0 or len(self._chain) == 1

    def recover(self, recovery_point: int) -> recovery.Recovery:
        """Scan the segments that may be torn; see `recovery`."""
        chain = list(self._chain)
        found = recovery.recover(chain, recovery_point=recovery_point)
        self._take(chain)
        return found

    def begin_again(self, offset: int) -> None:
        """Remove all segments, and continue with an empty one at `offset`."""
        self.rewrites += 1
        # The newest first: a crash leaves a prefix of the log, never a gap.
        for segment in reversed(self._chain):
            segment.remove()
        self._chain, self._bases, self.unsynced = [], [], []
        self.add(offset)

    def truncate(self, offset: int) -> None:
        """Durably remove everything from the batch that contains `offset` on, newest first."""
        self.rewrites += 1
        self.make_folder()
        kept = max(bisect_left(self._bases, offset), 1)
        # A batch may begin before `offset`, also in the segment before: the position is looked up
        # by offset, and the whole batch goes.
        last = self._load_segment(kept - 1)
        while len(self._chain) > kept:
            self._chain[-1].remove()
            self._take(self._chain[:-1])
        if offset < last.next_offset:
            end = last.position_of(offset) if offset > last.base_offset else 0
            last.close()
            last.rescan(end)
            last.aborted.distrust()  # It may list aborts whose markers are cut off.
            last.cut()
        last.unseal()
        last.is_linked()  # Opens the file for appends, so that `sync` uses that handle.
        # The caller counts everything that is left as synced: sync what was still waiting.
        for segment in self.unsynced:
            if segment in self._chain[:-1]:
                segment.sync()
        last.sync()
        self.unsynced = []
        self.sync_names()
        self.has_unsynced_names = False

    # Indexes that a full disk refused.

    def note_unwritten_indexes(self, found: Sequence[Segment]) -> None:
        """Note which of the segments scanned by recovery have index entries only in memory."""
        self.is_touched = True
        self._with_unwritten_indexes = [
            segment for segment in found if segment.has_unwritten_indexes
        ]
        self.has_unwritten_indexes = bool(self._with_unwritten_indexes)

    @property
    def first_unwritten_index(self) -> int | None:
        """The base offset of the first sealed segment whose indexes are not on disk, or None."""
        sealed = (each for each in self._with_unwritten_indexes if each is not self.active)
        return next((each.base_offset for each in sealed), None)

    def settle_indexes(self) -> None:
        """Write the entries that a full disk refused, before more is appended."""
        for segment in self._with_unwritten_indexes:
            if segment is self.active:
                segment.trim_indexes()
            else:
                segment.keep_indexes()
        self._with_unwritten_indexes = []
        self.has_unwritten_indexes = False
        self.is_touched = True

    # Growing and shrinking.

    @property
    def has_unsynced(self) -> bool:
        """Whether more than the active segment may not be on disk."""
        return bool(self.unsynced) or self.has_unsynced_names

    def add(self, base_offset: int, *, durable: bool = True) -> None:
        """Begin a new active segment at `base_offset`.

        Unless it is `durable`, its directory entry is synced by `sync_names`, before anything in
        it counts as synced.
        """
        self.make_folder()
        segment = self._new(base_offset)
        try:
            segment.create()
            if durable:
                self.sync_names()
        except OSError:
            # A clean opening would take the empty file for the end of the log.
            segment.remove()
            raise
        self.has_unsynced_names = not durable
        self._take([*self._chain, segment])

    def sync_names(self) -> None:
        """Sync the directory entries of all segments; callable from any thread."""
        if not self.has_folder:
            return
        self._files.sync_directory(self._directory)
        if self._is_folder_new:
            self._files.sync_directory(parent_of(self._directory))
            self._is_folder_new = False

    def note_synced_names(self, base_offset: int) -> None:
        """Note that the names of all segments up to the one at `base_offset` are on disk."""
        # A segment that was begun during the sync is not covered by it.
        if base_offset == self.active.base_offset:
            self.has_unsynced_names = False

    def epochs(self) -> Iterator[tuple[int, int]]:
        """Iterate over leader epoch and base offset of every batch with a sound header."""
        for segment in self:
            yield from segment.epochs()

    @property
    def newest_epoch(self) -> int:
        """The highest leader epoch of the batches read so far; -1 without one."""
        return max(segment.leader_epoch for segment in self._chain)

    def rewrite_unsynced(self, of: recovery.Recovery, offset: int) -> None:
        """Rewrite the segments that recovery found unsynced, from `offset` on."""
        for segment in self.last(of.unsynced_segments):
            recovery.rewrite(self._files, segment, offset)

    def last(self, count: int) -> list[Segment]:
        """Return the newest `count` segments without loading them."""
        return self._chain[-count:]

    def sealed_before(self, offset: int) -> Iterator[Segment]:
        """Iterate over the sealed segments that end at `offset` at most, loading each in turn.

        The chain may change between two steps; then the iterator ends at the change at the latest.
        """
        # By base offset and not by number: retention may remove the head between two steps.
        base = self._bases[0]
        while True:
            number = bisect_left(self._bases, base)
            if self._bases[number : number + 1] != [base] or number + 1 == len(self._bases):
                return
            base = self._bases[number + 1]
            if base > offset:
                return
            yield self._load_segment(number)

    def base_offset(self, number: int) -> int:
        """Return the base offset of segment `number`; the oldest has number 0."""
        return self._bases[number]

    def count_before(self, offset: int) -> int:
        """Count the segments, from the oldest on, that end at `offset` at most."""
        return bisect_right([*self._bases[1:], self.active.next_offset], offset)

    def has_first_before(self, offset: int) -> bool:
        """Whether the oldest segment is sealed and ends at `offset` at most."""
        return len(self._bases) > 1 and self._bases[1] <= offset

    def retire_first(self) -> list[str]:
        """Take the oldest segment out by renaming its files; return the paths to remove."""
        first = self._chain[0]
        renamed = first.retire()
        self._take(self._chain[1:])
        self.unsynced = [segment for segment in self.unsynced if segment is not first]
        return renamed

    def new_segment(self, base_offset: int) -> Segment:
        """Return a new segment to create and fill; it is not part of the log yet."""
        return self._new(base_offset, suffix=CLEANED_SUFFIX)

    def find_slice(self, replaced: Sequence[Segment]) -> slice:
        """Return the slice of the chain that is these consecutive segments.

        Raises:
            UnknownTopicOrPartition: one of them is gone.
        """
        first = bisect_right(self._bases, replaced[0].base_offset) - 1
        part = slice(first, first + len(replaced))
        if self._chain[part] != list(replaced):
            raise UnknownTopicOrPartition(
                f"{self._name}: a segment was deleted while it was compacted"
            )
        return part

    def swap(self, part: slice, cleaned: Segment) -> Swap:
        """Replace a slice of the chain with `cleaned`, which is on disk.

        After an error, only the next opening finds out which of the two is part of the log.
        """
        self.rewrites += 1
        chain = list(self._chain)
        begun = begin_swap(self._files, self._directory, cleaned, chain[part])
        replaced = chain[part]
        chain[part] = [cleaned]
        self._take(chain)
        for segment in replaced:
            segment.close()
        return begun

    def __contains__(self, segment: Segment) -> bool:
        return segment in self._chain

    def close(self) -> None:
        """Close all open files."""
        for segment in self._chain:
            segment.close()

    # Contents.

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches in the segments that have been loaded."""
        return sum(segment.size_bytes for segment in self._chain)

    @property
    def are_loaded(self) -> bool:
        """Whether all segments are loaded; sealed ones are once they are read or examined."""
        return all(segment.loaded for segment in self._chain)

    @property
    def damage(self) -> tuple[Damage, ...]:
        """The damaged ranges found so far."""
        found = [part for segment in self._chain for part in segment.damage]
        return tuple(found)

    def segment_of(self, offset: int) -> Segment:
        """Return the segment that contains `offset`, loaded.

        Raises:
            CorruptData: the first segments are missing.
        """
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            raise CorruptData(
                f"{self._name}: offsets before {self._bases[0]} are missing: that is where the"
                f" first file in {self._directory} begins"
            )
        segment = self._chain[number]
        return segment if segment.loaded else self._load_segment(number)

    def segments_from(self, offset: int) -> Iterator[Segment]:
        """Iterate over the segments from the one that contains `offset` on, or over all of them."""
        first = max(bisect_right(self._bases, offset) - 1, 0)
        return (self._load_segment(number) for number in range(first, len(self._chain)))

    def search(self, offset: int, end_offset: int) -> RecordSearch:
        """Return a search for the first record from `offset` on, in the segment that has it.

        It is for any thread, and does no I/O here. `end_offset` bounds the search.

        Raises:
            CorruptData: the first segments are missing.
        """
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            raise CorruptData(f"{self._name}: offsets before {self._bases[0]} are missing")
        following = self._bases[number + 1 : number + 2]
        return self._chain[number].search(offset, min([end_offset, *following]))

    def first_not_before(self, timestamp_ms: int, start_offset: int) -> LogRecord | None:
        """Return the first record from `start_offset` on that is not older than `timestamp_ms`.

        Raises:
            CorruptData: a batch that the search reads is damaged.
        """
        for segment in self:
            record = segment.first_not_before(timestamp_ms, start_offset)
            if record is not None:
                return record
        return None

    def newest(self, start_offset: int) -> LogRecord | None:
        """Return the first record with the greatest timestamp; None without one.

        Raises:
            CorruptData: its batch is damaged.
        """
        return max(self, key=_max_timestamp_ms).newest(start_offset)

    def aborted(self, offset: int, end_offset: int) -> list[EndedTransaction]:
        """Return the aborted transactions with records from `offset` to before `end_offset`.

        Raises:
            CorruptData: an index has to be rebuilt, and the log is damaged.
        """
        found: list[EndedTransaction] = []
        # An abort is indexed in the segment of its marker, which may be a later one than that of
        # its records. 1. Records of producer 7 are at 10-20, in segment 0. 2. Its marker is at 150,
        # in segment 100. 3. A read of 10-20 searches segment 0, then segment 100, until an entry
        # shows that every transaction begun before `end_offset` is decided (`last_stable_offset`).
        for segment in self._chain[max(bisect_right(self._bases, offset) - 1, 0) :]:
            if segment.aborted.is_empty:
                continue  # Most segments, and each Fetch of committed records asks all of these.
            if not (segment.aborted.is_known or segment.aborted.load(segment.base_offset)):
                self.replay(self._bases[0], OpenTransactions().take)
            here, complete = segment.aborted.overlapping(offset, end_offset)
            found += here
            if complete:
                break
        return found

    @property
    def distrusted_offset(self) -> int | None:
        """The base offset of the first segment whose index of aborts is not trusted, or None."""
        chain = self._chain
        return next((each.base_offset for each in chain if each.aborted.is_distrusted), None)

    def replay(self, offset: int, take: Replay) -> None:
        """Call `take` with every batch from `offset` on, in order.

        The aborted transactions that it returns become the index of a segment without a sound one.
        """
        for segment in self.segments_from(offset):
            aborted: list[EndedTransaction] = []
            for batch in segment.batches(offset):
                decided = take(batch, batch.base_offset)
                if decided is not None and decided.aborted:
                    aborted.append(decided)
            if segment.aborted.is_distrusted:
                segment.aborted.rebuild(aborted)
                segment.write_if_space(segment.aborted.flush)

    def report(self, found: recovery.Recovery) -> None:
        """Log what recovery has cut off or found damaged."""
        if found.truncated_bytes:
            _logger.warning(
                "%s: cut %d bytes of an unfinished write off the end of the log; it ends at offset"
                " %d",
                self._name,
                found.truncated_bytes,
                self.active.next_offset,
            )
        for part in found.damage:
            self.tell(str(part))

    def tell(self, damage: str) -> None:
        """Log a damaged range, once and not for every read of it.

        A reader next to a running broker logs nothing, because a change of files can look like
        damage.
        """
        if self._read_only:
            return
        if damage not in self._logged_damage and len(self._logged_damage) < DAMAGE_LOGGED_MAX:
            self._logged_damage.add(damage)
            _logger.error("%s", damage)

    def watch_damage(self, on_damage: Callable[[], None]) -> None:
        """Call `on_damage` from any thread that finds damage from now on."""
        self._on_damage = on_damage

    def watch_as(self, other: Segments) -> None:
        """Call what `other` calls when it finds damage."""
        self._on_damage = other._on_damage

    # Internal.

    def _take(self, chain: list[Segment]) -> None:
        self._chain = chain
        self._bases = [segment.base_offset for segment in chain]
        self.active = chain[-1]
        self.is_touched = True
        if self._with_unwritten_indexes:
            self._with_unwritten_indexes = [
                segment for segment in self._with_unwritten_indexes if segment in chain
            ]

    def _report_damage(self) -> None:
        self.is_touched = True
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
            on_damage=self._report_damage,
        )

    def _open_link(self, link: Link) -> Segment:
        segment = self._new(link.base_offset, suffix=link.index_suffix)
        segment.path = f"{self._directory}/{link.log}"
        return segment

    def _load_segment(self, number: int) -> Segment:
        segment = self._chain[number]
        if not segment.loaded:
            recovery.load_sealed(segment, self._bases[number + 1])
            for part in segment.damage:
                self.tell(str(part))
        return segment


def _max_timestamp_ms(segment: Segment) -> int:
    return segment.max_timestamp_ms
