"""SourceFetcher: the loop that fetches from one broker of a source, for the mirrors of one link.

A request contains all partitions that are ready, and the next one is sent after its answer. A
source without new records holds the request for a while. The fetches are those of a consumer that
reads uncommitted records: transactions and their markers come as they are.

Rules of this module: every mirror gets the answer to its fetch, or learns that there is none. A
broker that can't be reached is tried again at growing intervals. An error that new metadata of the
source may explain is reported to the link, which deals the partition out again.

Not done here: what a mirror fetches and makes of an answer (`mirror_copy`), who leads (`link`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from streamlog import repeated
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode, describe
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from streamlog.broker.mirroring.mirror_copy import MirrorCopy
    from streamlog.broker.mirroring.source_cluster import SourceCluster
    from streamlog.broker.replication.mirror_reader import SourceFetch
    from streamlog.broker.replication.replication_quota import ReplicationQuota
    from streamlog.clock import Clock
    from streamlog.transport.client_connection import Transport

RETRY_S = 0.05
"""The pause after a first failure, in seconds; it doubles with each further one."""
RETRY_S_MAX = 5.0
THROTTLE_S_MAX = 1.0
"""The longest wait for the quota at once, in seconds; then it is looked at again."""

_AFTER_ELECTIONS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)
"""Errors that a look at the source's metadata mends or explains; no line of the log is due."""
_log = repeated.logger(__name__)

Key = tuple[str, int]


class FetchSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How much a fetch asks for, and how long it may wait."""

    partition_max_bytes: int
    response_max_bytes: int
    max_wait_ms: int
    timeout_ms: int


class SourceFetcher:
    """Fetches from broker `node_id` of a source; the link runs `run` as a task.

    Args:
        node_id: the broker.
        source: the cluster.
        clock: the time.
        on_outdated: called with partitions that the broker does not serve any more.
        on_wanted: called when a mirror waits for an answer of others.
        sizes: how much is fetched at once.
        quota: how much is fetched per second, by all fetchers of the link together.
    """

    def __init__(
        self,
        node_id: int,
        source: SourceCluster,
        *,
        clock: Clock,
        on_outdated: Callable[[Key], None],
        on_wanted: Callable[[], None],
        sizes: FetchSizes,
        quota: ReplicationQuota,
    ) -> None:
        self.node_id = node_id
        self.trouble: str | None = None
        """Why the last request failed; None if it succeeded."""
        self.refused: set[Key] = set()
        """What the source does not let this user read, as of the last answers."""
        self._source = source
        self._clock = clock
        self._on_outdated = on_outdated
        self._on_wanted = on_wanted
        self._sizes = sizes
        self._quota = quota
        self._copies: dict[Key, MirrorCopy] = {}
        self._resting: dict[Key, float] = {}
        """Until when partitions whose last fetch failed rest, by the loop's time."""
        self._pauses_s: dict[Key, float] = {}
        self._wake = asyncio.Event()
        self._transport: Transport | None = None

    def assign(self, copies: dict[Key, MirrorCopy]) -> None:
        """Fetch for these mirrors from now on, and for no others."""
        self._copies = copies
        for key in [*self._pauses_s]:
            if key not in copies:
                self._pauses_s.pop(key)
                self._resting.pop(key, None)
        self.refused &= copies.keys()
        self._wake.set()

    def keep(self, copies: Mapping[Key, MirrorCopy]) -> None:
        """Fetch no more for mirrors that are not among these."""
        kept = {key: each for key, each in self._copies.items() if copies.get(key) is each}
        if len(kept) < len(self._copies):
            self.assign(kept)

    def look_again(self) -> None:
        """Check again what to fetch: something that a mirror waited for has come."""
        self._wake.set()

    async def run(self) -> None:
        """Fetch until cancelled."""
        pause_s = RETRY_S
        try:
            while True:
                # Before the mirrors are asked: a fetch that waits would name an old offset.
                if held_ms := self._quota.exceeded_for_ms(self._clock.now_ms()):
                    await asyncio.sleep(min(held_ms / 1000, THROTTLE_S_MAX))
                    continue
                asked = self._next()
                if not asked:
                    await self._wait()
                elif await self._fetch(asked):
                    pause_s = RETRY_S
                else:
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, RETRY_S_MAX)
        finally:
            await self._disconnect()

    async def _wait(self) -> None:
        """Wait until a mirror may fetch."""
        now = asyncio.get_running_loop().time()
        until = min(self._resting.values(), default=None)
        try:
            async with asyncio.timeout(None if until is None else max(0.0, until - now)):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _next(self) -> dict[Key, tuple[MirrorCopy, SourceFetch]]:
        """Return the next fetch of each mirror that has one and does not rest."""
        now = asyncio.get_running_loop().time()
        self._resting = {key: until for key, until in self._resting.items() if until > now}
        asked: dict[Key, tuple[MirrorCopy, SourceFetch]] = {}
        for key, copy in self._copies.items():
            fetch = None if key in self._resting else copy.next_fetch()
            if fetch is not None:
                asked[key] = (copy, fetch)
        return asked

    async def _fetch(self, asked: dict[Key, tuple[MirrorCopy, SourceFetch]]) -> bool:
        """Send a request and pass on the answers; return whether the broker has answered."""
        unanswered = dict(asked)
        try:
            for key, data in await self._ask(asked):
                # A mirror that was paused meanwhile copies nothing any more.
                if key in unanswered and self._copies.get(key) is unanswered[key][0]:
                    self._deliver(key, *unanswered.pop(key), data)
        except (StreamlogError, OSError) as error:
            self._note_trouble(str(error))
            await self._disconnect()
            return False
        else:
            self._note_trouble(None)
            return True
        finally:
            # After a cancellation too: a fetch that stays open is never followed by another.
            for key, (copy, fetch) in unanswered.items():
                copy.reader.on_failed(fetch.number)
                self._rest(key)

    async def _ask(
        self, asked: dict[Key, tuple[MirrorCopy, SourceFetch]]
    ) -> list[tuple[Key, PartitionData]]:
        if self._transport is None:
            self._transport = await self._source.connect(self.node_id)
        request, names = self._request(asked)
        response = await self._transport.call(request, timeout_ms=self._sizes.timeout_ms)
        if not isinstance(response, FetchResponse) or response.error_code:
            return []
        return [
            ((topic.topic or names.get(topic.topic_id, ""), data.partition_index), data)
            for topic in response.responses
            for data in topic.partitions
        ]

    def _request(
        self, asked: dict[Key, tuple[MirrorCopy, SourceFetch]]
    ) -> tuple[FetchRequest, dict[bytes, str]]:
        topics: dict[str, FetchTopic] = {}
        names: dict[bytes, str] = {}
        for (name, index), (_, fetch) in asked.items():
            known = self._source.topics.get(name)
            # The metadata may be newer than the deal; the partition then gets no answer, and rests
            # until it is dealt out again.
            if known is None or index >= len(known.leaders):
                continue
            names[known.topic_id] = name
            topic = topics.setdefault(
                name, FetchTopic(topic=name, topic_id=known.topic_id, partitions=[])
            )
            topic.partitions.append(
                FetchPartition(
                    partition=index,
                    current_leader_epoch=known.leaders[index].leader_epoch,
                    fetch_offset=fetch.offset,
                    last_fetched_epoch=fetch.last_epoch,
                    partition_max_bytes=self._sizes.partition_max_bytes,
                )
            )
        return FetchRequest(
            max_wait_ms=self._sizes.max_wait_ms,
            min_bytes=1,
            max_bytes=self._sizes.response_max_bytes,
            session_id=0,
            session_epoch=-1,  # No fetch session.
            topics=list(topics.values()),
        ), names

    def _deliver(self, key: Key, copy: MirrorCopy, fetch: SourceFetch, data: PartitionData) -> None:
        """Pass an answer to its mirror. A failure of one log does not stop the others."""
        records = one_buffer(data.records)
        self._quota.record(len(records), self._clock.now_ms())
        try:
            continues = copy.on_answer(fetch, data, self._clock.now_ms())
        except StreamlogError as error:
            _log.error(
                "%s-%d can't append what broker %d of the source sent: %s",
                *(copy.partition.topic, copy.partition.index, self.node_id, error),
            )
            continues = False
        if continues:
            self._pauses_s.pop(key, None)
        else:
            self._rest(key)
        is_refused = data.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        (self.refused.add if is_refused else self.refused.discard)(key)
        if copy.wanted is not None:
            self._on_wanted()
        if data.error_code not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
            self._on_outdated(key)
            if data.error_code not in _AFTER_ELECTIONS:
                _log.warning(
                    "broker %d of the source refuses %s-%d: %s",
                    *(self.node_id, *key, describe(data.error_code)),
                )

    def _rest(self, key: Key) -> None:
        pause_s = self._pauses_s.get(key, RETRY_S)
        self._pauses_s[key] = min(pause_s * 2, RETRY_S_MAX)
        self._resting[key] = asyncio.get_running_loop().time() + pause_s

    def _note_trouble(self, trouble: str | None) -> None:
        """Log once why fetches fail, and once that they succeed again."""
        if trouble == self.trouble:
            return
        self.trouble = trouble
        if trouble is None:
            _log.info("fetching from broker %d of the source succeeds again", self.node_id)
        else:
            _log.warning("fetching from broker %d of the source fails: %s", self.node_id, trouble)

    async def _disconnect(self) -> None:
        transport, self._transport = self._transport, None
        if transport is None:
            return
        try:
            await transport.close()
        except StreamlogError:
            return  # It is lost already.
