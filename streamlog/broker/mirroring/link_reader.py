"""LinkReader: reads the topics of one link that mirror partitions led by this broker copy.

It knows which broker of the source leads which partition, deals the mirrors out to one fetcher for
each of those brokers, and asks the controller and the source what the mirrors want to know.

Rules of this module: everything runs in `run`, which the broker owns. Metadata of the source is
asked for when a partition is new, when a fetcher reports it as outdated, and once in a while.

Not done here: what is mirrored (`link_topics`), groups and settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.mirroring.link_notices import LinkNotices, listed
from streamlog.broker.mirroring.source_fetcher import FetchSizes, Key, SourceFetcher
from streamlog.broker.replication.mirror_reader import (
    AskAlone,
    AskCut,
    AskEnds,
    KeepRecords,
    RaiseEpoch,
    StopMirror,
)
from streamlog.broker.replication.replication_quota import UNBOUNDED, ReplicationQuota
from streamlog.errors import CorruptData, StreamlogError
from streamlog.protocol.error_codes import error_for
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from streamlog.protocol.schema import ZERO_UUID

if TYPE_CHECKING:
    from streamlog.broker.mirroring.mirror_copy import MirrorCopy
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.clock import Clock

REFRESH_S = 5.0
"""How old metadata of the source may be."""
OUTDATED_S = 0.1
"""The pause before metadata is asked for again because a partition is not where it was."""
LATEST, EARLIEST = -1, -2

BeginEpoch = Callable[["MirrorCopy", RaiseEpoch | AskCut | AskAlone], Awaitable[None]]
"""Asks the controller for a leader epoch. Another `MirrorCopy` reads in the new one. Raises
StreamlogError without an answer."""
Stop = Callable[["MirrorCopy", str], Awaitable[None]]
"""Tells the controller that a topic can't be mirrored any more, and why."""
Keep = Callable[["MirrorCopy", KeepRecords], Awaitable[None]]
"""Keeps records of a mirror in a file. Raises StreamlogError."""

_log = repeated.logger(__name__)


class LinkReader:
    """The reader of one link on this broker.

    Args:
        name: the link's name.
        source: the cluster that it leads to.
        clock: the time.
        begin_epoch: asks the controller for a leader epoch.
        stop: tells the controller that a topic can't be mirrored.
        keep: keeps records in a file before they are cut.
        sizes: how much is fetched at once.
        bytes_per_s: how much this broker fetches per second; 0 without a limit.
    """

    def __init__(
        self,
        name: str,
        source: SourceCluster,
        *,
        clock: Clock,
        begin_epoch: BeginEpoch,
        stop: Stop,
        keep: Keep,
        sizes: FetchSizes,
        bytes_per_s: int,
    ) -> None:
        self.name = name
        self.trouble: str | None = None
        """Why the source could not be asked for its metadata; None if it could."""
        self.notices = LinkNotices(f"link {name}, records")
        """What the source does not let this broker read."""
        self._source = source
        self._clock = clock
        self._begin_epoch = begin_epoch
        self._stop = stop
        self._keep = keep
        self._sizes = sizes
        self._quota = ReplicationQuota(bytes_per_s or UNBOUNDED)
        self._copies: dict[Key, MirrorCopy] = {}
        self._fetchers: dict[int, tuple[SourceFetcher, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._is_outdated = False

    def assign(self, copies: dict[Key, MirrorCopy]) -> None:
        """Read for these mirrors from now on, and for no others."""
        self._copies = copies
        # At once: before the next round, an open fetch may be answered for one that was paused.
        for fetcher, _ in self._fetchers.values():
            fetcher.keep(copies)
        self._changed.set()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._round(group)
                    await self._wait()
        finally:
            await self._source.close()

    async def _round(self, group: asyncio.TaskGroup) -> None:
        await self._refresh()
        self._deal(group)
        self._note_refused()
        # A copy: while one mirror's question is on its way, `assign` may give other mirrors.
        for copy in [*self._copies.values()]:
            await self._ask_for(copy)

    async def _refresh(self) -> None:
        self._is_outdated = False
        names = {topic for topic, _ in self._copies}
        if not names:
            return
        try:
            await self._source.refresh(names)
        except (StreamlogError, OSError) as error:
            self._note_trouble(str(error))
        else:
            self._note_trouble(None)

    def _note_trouble(self, trouble: str | None) -> None:
        """Log once why the source can't be reached, and once that it can again."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            _log.info("link %s: the source answers again", self.name)
        else:
            _log.warning("link %s: the source does not answer: %s", self.name, trouble)

    def _note_refused(self) -> None:
        topics = {topic for fetcher, _ in self._fetchers.values() for topic, _ in fetcher.refused}
        self.notices.note(
            "refused",
            f"the source refuses to let {listed(topics)} be read: the link's user needs READ there"
            if topics
            else "",
        )

    def _deal(self, group: asyncio.TaskGroup) -> None:
        """Give each fetcher its mirrors; begin and end fetchers as leaders move."""
        shares: dict[int, dict[Key, MirrorCopy]] = {}
        for key, copy in self._copies.items():
            found = self._source.topics.get(key[0])
            if found is None:
                continue
            expected = copy.source.topic_id
            # Offsets of a topic that was created again begin at 0: without this check its records
            # would be appended behind those of the deleted one as soon as it is longer.
            if expected != ZERO_UUID and found.topic_id not in (expected, ZERO_UUID):
                copy.wanted = StopMirror(
                    f"topic {key[0]} of the source was deleted and created again: its records are"
                    " those of another log"
                )
            elif key[1] < len(found.leaders) and found.leaders[key[1]].node_id >= 0:
                shares.setdefault(found.leaders[key[1]].node_id, {})[key] = copy
        for node_id in shares.keys() - self._fetchers.keys():
            fetcher = SourceFetcher(
                node_id,
                self._source,
                clock=self._clock,
                on_outdated=self._on_outdated,
                on_wanted=self._changed.set,
                sizes=self._sizes,
                quota=self._quota,
            )
            self._fetchers[node_id] = fetcher, group.create_task(fetcher.run())
        for node_id, (fetcher, task) in [*self._fetchers.items()]:
            # A fetcher without mirrors ends, so that a broker that was removed from the source is
            # not dialled for ever.
            if node_id in shares:
                fetcher.assign(shares[node_id])
            else:
                task.cancel()
                del self._fetchers[node_id]

    async def _ask_for(self, copy: MirrorCopy) -> None:
        """Ask what a mirror wants to know; without an answer it is asked again later."""
        wanted = copy.wanted
        try:
            match wanted:
                case RaiseEpoch() | AskCut() | AskAlone():
                    await self._begin_epoch(copy, wanted)
                case StopMirror(reason):
                    await self._stop(copy, reason)
                case KeepRecords():
                    await self._keep(copy, wanted)
                    copy.on_kept(wanted.offset)
                    self._look_again()
                case AskEnds():
                    start, end = await self._find_ends(copy)
                    copy.on_ends(start, end, self._clock.now_ms())
                    self._look_again()
        except StreamlogError as error:
            _log.warning(
                "link %s: %s-%d waits: %s",
                *(self.name, copy.partition.topic, copy.partition.index, error),
            )

    async def _find_ends(self, copy: MirrorCopy) -> tuple[int, int]:
        """Return the offsets at which a partition starts and ends at the source.

        Raises:
            StreamlogError: its leader does not answer, or the topic is not the mirror's any more.
        """
        topic, index = copy.key
        found = self._source.topics.get(topic)
        if found is None or index >= len(found.leaders):
            raise CorruptData(f"the source has no partition {topic}-{index}")
        ends = []
        transport = await self._source.connect(found.leaders[index].node_id)
        try:
            # Two requests in this order: records that are deleted in between only make the start
            # too low, and the next fetch finds that out. The other way round it could pass the end.
            for timestamp in (EARLIEST, LATEST):
                part = ListOffsetsPartition(partition_index=index, timestamp=timestamp)
                request = ListOffsetsRequest(
                    replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[part])]
                )
                answer = await transport.call(request, timeout_ms=self._sizes.timeout_ms)
                if not isinstance(answer, ListOffsetsResponse):
                    raise CorruptData(f"the source answered {type(answer).__name__}")
                found_there = answer.topics[0].partitions[0]
                # Without an offset the answer has -1, at which a log must not begin.
                if found_there.error_code:
                    about = f"the source does not tell where {topic}-{index} starts and ends"
                    raise error_for(found_there.error_code, about)
                ends.append(found_there.offset)
            # ListOffsets has names only. 1. The topic is deleted, and created again. 2. The offsets
            # are those of the new one, and this log would be emptied to begin there. A broker that
            # has told the offsets of the new topic tells its id, too.
            await self._source.check_id(transport, topic, copy.source.topic_id)
        finally:
            await transport.close()
        return ends[0], ends[1]

    def _look_again(self) -> None:
        for fetcher, _ in self._fetchers.values():
            fetcher.look_again()

    def _on_outdated(self, _: Key) -> None:
        self._is_outdated = True
        self._changed.set()

    async def _wait(self) -> None:
        """Wait until the mirrors change, or the metadata of the source is old."""
        if self._is_outdated or any(copy.wanted is not None for copy in self._copies.values()):
            await asyncio.sleep(OUTDATED_S)
            return
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._changed.wait()
        except TimeoutError:
            return
        self._changed.clear()
