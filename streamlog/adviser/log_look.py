"""LogLook: describes a running log as a `LogView`, by admin requests only.

It looks twice, some seconds apart: rates of writes, of groups and of disks are the differences.
What a user may not see, or a broker does not support, is left out and named in `LogView.unseen`.

Rule of the module: it changes nothing, has at most `CONCURRENT` requests in flight, and waits for
each answer for `PATIENCE_S` at most, because it is needed most when brokers do not answer. Not done
here: what is wrong with the view (`cluster_advice`, `reader_advice`), apps (`app_look`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from streamlog.adviser.log_view import (
    NO_NODE,
    BrokerView,
    DiskView,
    GroupView,
    LogView,
    MirrorView,
    ReadingView,
    TopicView,
    TransactionView,
)
from streamlog.adviser.reader_advice import REBALANCING
from streamlog.client.admin import (
    Admin,
    GroupDescription,
    LogDir,
    PartitionLagDescription,
)
from streamlog.client.admin.cluster_descriptions import (
    ClusterDescription,
    ClusterReports,
    PartitionDescription,
    QuorumDescription,
)
from streamlog.client.admin.mirror_admin import MirrorStatus
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import LogError, NotAuthorized, StreamlogError, UnsupportedVersion
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

CONCURRENT: Final = 16
"""Requests in flight at a time: the adviser must not be a load of its own."""
PATIENCE_S: Final = 10.0
"""How long one question, or one kind of question to many topics or groups, may take."""
PATIENCE_NAMES: Final = 500
"""For every this many topics or groups asked about, the wait grows by `PATIENCE_S`."""
IMPATIENT_S: Final = 1.0
"""The same once `UNANSWERED_MAX` of them had no answer: brokers are frozen or unreachable."""
UNANSWERED_MAX: Final = 2
GROUPS_MAX: Final = 2_000
"""Of more groups, the first ones are described."""
TOPICS_MAX: Final = 5_000
"""Of more topics, the settings of the first ones are read."""
RATES_MS: Final = 10_000
"""The time over which successive looks measure rates."""
AGES_MAX: Final = 500
"""Partitions of groups whose next record is read at most, where brokers don't tell its age."""
AGE_FETCH_BYTES: Final = 64 * 1024
AGE_POLL_MS: Final = 200
LAG_IN_TIME: Final = "lag of groups in time"
ONGOING: Final = "Ongoing"
STOPPED: Final = frozenset({MirrorStatus.STOPPED, MirrorStatus.DIVERGED})
"""States that no mirror leaves by itself."""

T = TypeVar("T")
K = TypeVar("K")


@dataclass(slots=True)
class _Look:
    """The figures of one moment that the next look is compared with."""

    at_ms: int
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[str, dict[TopicPartition, int]] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    dirs: list[LogDir] = field(default_factory=list)


class LogLook:
    """Looks at one log, which stays open."""

    def __init__(self, log: Log, *, url: str, clock: Clock | None = None) -> None:
        """`url` is for the commands that the advice names."""
        self._log, self._url = log, url
        self._admin: Admin = log.admin()
        self._clock = clock or SystemClock()
        self._unseen: dict[str, str] = {}
        self._unanswered = 0
        self._room = asyncio.Semaphore(CONCURRENT)
        self._looks = deque[_Look]()

    async def view(self, watch_s: float) -> LogView:
        """Describe the log after an observation of `watch_s` seconds; 0 for none.

        Raises:
            ConnectionLost: no broker can be reached.
        """
        async with self._log.consumer(auto_offset_reset="earliest") as consumer:
            before = None
            if watch_s > 0:
                before = await self._figures(consumer)
                await asyncio.sleep(watch_s)
            view, _ = await self._compared(consumer, before)
            return view

    async def next_view(self) -> LogView:
        """Describe the log; rates are those since an earlier call, and none the first time.

        That call is `RATES_MS` ago, or as near to it as there was one: over a shorter time, a group
        that reads in batches seems to fall behind and to catch up in turn.

        Raises:
            ConnectionLost: no broker can be reached.
        """
        # What could not be seen before may be seen now.
        self._unseen, self._unanswered = {}, 0
        now_ms = self._clock.now_ms()
        while len(self._looks) > 1 and self._looks[1].at_ms <= now_ms - RATES_MS:
            self._looks.popleft()
        before = self._looks[0] if self._looks else None
        async with self._log.consumer(auto_offset_reset="earliest") as consumer:
            view, now = await self._compared(consumer, before)
        self._looks.append(now)
        return view

    async def _figures(self, consumer: Consumer) -> _Look:
        partitions = await self._partitions()
        found = _Look(self._clock.now_ms())
        found.ends = await self._offsets(consumer.end_offsets, partitions)
        listed = await self._seen("groups", self._admin.list_groups(), [])
        found.states = {each.group_id: each.state for each in listed[:GROUPS_MAX]}
        found.committed = await self._each(
            "offsets of groups", found.states, self._admin.group_offsets
        )
        found.dirs = await self._seen("log directories", self._admin.describe_log_dirs(), [])
        return found

    async def _compared(self, consumer: Consumer, before: _Look | None) -> tuple[LogView, _Look]:
        """Return a description, with the figures that a later one is compared with."""
        admin = self._admin
        partitions = await self._partitions()
        now = await self._figures(consumer)
        watched_s = 0.0 if before is None else (now.at_ms - before.at_ms) / 1000
        is_streamlog = await self._seen("the brokers' vendor", admin.is_streamlog(), default=True)
        if not is_streamlog:
            self._unseen["clocks, releases and builds of brokers"] = "only streamlog's report them"
        brokers = await self._brokers()
        cluster = await self._cluster()
        begins = await self._offsets(consumer.begin_offsets, partitions)
        topics = await self._topics(partitions, begins, now, before)
        quorum = await self._seen(QUORUM, self._quorum(), None)
        # Without a majority, brokers still name the last controller.
        is_led = QUORUM not in self._unseen or self._unseen[QUORUM] in REFUSALS
        moves = await self._seen("moves", admin.list_partition_reassignments(), {})
        view = LogView(
            url=self._url,
            is_streamlog=is_streamlog,
            controller=cluster.controller if is_led else NO_NODE,
            brokers=brokers,
            disks=_disks(now, before),
            topics=topics,
            groups=await self._groups(now, before, begins),
            transactions=await self._transactions(),
            quorum=quorum,
            moves=len(moves),
            subscriptions=await self._subscriptions(),
            mirrors=await self._mirrors() if is_streamlog else (),
            watched_s=watched_s,
            unseen=tuple(f"{what}: {why}" for what, why in sorted(self._unseen.items())),
        )
        return view, now

    async def _mirrors(self) -> tuple[MirrorView, ...]:
        found = await self._seen("mirrors", self._admin.describe_mirrors(), None)
        return tuple(
            MirrorView(
                name=each.name,
                link=each.link,
                is_stopped=each.status in STOPPED,
                reason=each.reason or each.status.lower(),
            )
            for each in (() if found is None else found.mirrors)
        )

    async def _partitions(self) -> list[PartitionDescription]:
        return await self._seen("partitions", self._admin.describe_partitions(), [])

    async def _cluster(self) -> ClusterDescription:
        gone = ClusterDescription("", NO_NODE, ())
        return await self._seen("brokers", self._admin.describe_cluster(), gone)

    async def _brokers(self) -> tuple[BrokerView, ...]:
        cluster = await self._cluster()
        reports: ClusterReports = await self._seen(
            "reports of brokers", self._admin.describe_nodes(), ClusterReports()
        )
        ids = {each.node_id for each in cluster.brokers}
        fenced = {
            node_id
            for report in reports.reports.values()
            for node_id, each in report.registrations.items()
            if each.is_fenced
        }
        alive = ids - reports.silent.keys()
        settings = await self._each("settings of brokers", alive, self._broker_settings)
        levels = await self._each("levels of loggers", alive, self._levels)
        versions = await self._seen(
            "API versions of brokers", self._admin.describe_api_versions(), {}
        )
        found = []
        for node_id in sorted(ids | fenced):
            report = reports.reports.get(node_id)
            found.append(
                BrokerView(
                    node_id=node_id,
                    is_fenced=node_id in fenced,
                    silent=reports.silent.get(node_id, ""),
                    version=None if report is None else report.version,
                    interpreted=None if report is None else report.interpreted,
                    connections=None if report is None else report.connections,
                    clock_ahead_ms=None if report is None else report.clock_ahead_ms,
                    clock_error_ms=0 if report is None else report.clock_error_ms,
                    settings=settings.get(node_id, {}),
                    levels=levels.get(node_id, {}),
                    apis=versions.get(node_id),
                )
            )
        return tuple(found)

    async def _broker_settings(self, node_id: int) -> dict[str, str | None]:
        found = await self._admin.describe_configs(broker=node_id)
        return {name: each.value for name, each in found.items()}

    async def _levels(self, node_id: int) -> dict[str, str]:
        found = await self._admin.describe_loggers(node_id)
        return {name: each.value or "" for name, each in found.items()}

    async def _topic_settings(self, topic: str) -> dict[str, str | None]:
        found = await self._admin.describe_configs(topic)
        return {name: each.value for name, each in found.items()}

    async def _topics(
        self,
        partitions: Iterable[PartitionDescription],
        begins: Mapping[TopicPartition, int],
        now: _Look,
        before: _Look | None,
    ) -> dict[str, TopicView]:
        of_topic: defaultdict[str, list[PartitionDescription]] = defaultdict(list)
        for each in partitions:
            of_topic[each.topic].append(each)
        listed = await self._seen(
            "which topics are internal", self._admin.list_topics(internal=True), []
        )
        internal = {each.name: each.is_internal for each in listed}
        names = sorted(of_topic)
        if len(names) > TOPICS_MAX:
            self._unseen[f"settings of {len(names) - TOPICS_MAX} topics"] = "there are too many"
        settings = await self._each("settings of topics", names[:TOPICS_MAX], self._topic_settings)
        sizes = _sizes(now.dirs)
        rates = {} if before is None else _rates(before, now, now.ends, before.ends)
        found = {}
        for name, rows in of_topic.items():
            parts = [TopicPartition(name, each.partition) for each in rows]
            found[name] = TopicView(
                name=name,
                is_internal=internal.get(name, False),
                settings=settings.get(name, {}),
                partitions=tuple(rows),
                begins={at.partition: begins[at] for at in parts if at in begins},
                ends={at.partition: now.ends[at] for at in parts if at in now.ends},
                rates={at.partition: rates[at] for at in parts if at in rates},
                sizes={at.partition: sizes[at] for at in parts if at in sizes},
            )
        return found

    async def _groups(
        self, now: _Look, before: _Look | None, begins: Mapping[TopicPartition, int]
    ) -> dict[str, GroupView]:
        described = await self._each("members of groups", now.states, self._group)
        lags = await self._each(LAG_IN_TIME, now.states, self._lag)
        ages = await self._ages(now, begins)
        written = {} if before is None else _rates(before, now, now.ends, before.ends)
        found = {}
        for name, state in now.states.items():
            group, offsets = described.get(name), now.committed.get(name, {})
            earlier = None if before is None else before.committed.get(name)
            read = (
                {} if before is None or earlier is None else _rates(before, now, offsets, earlier)
            )
            readings = {}
            for at, committed in offsets.items():
                known = lags.get(name, {}).get(at)
                end, begin = now.ends.get(at), begins.get(at)
                readings[at] = ReadingView(
                    committed=committed,
                    lag=None if end is None else max(end - committed, 0),
                    lag_ms=ages.get((name, at)) if known is None else known.lag_ms,
                    lost=None if begin is None else max(begin - committed, 0),
                    consume_rate=read.get(at),
                    produce_rate=written.get(at),
                )
            found[name] = GroupView(
                group_id=name,
                kind="classic" if group is None else group.kind,
                state=state,
                was_rebalancing=before is not None and before.states.get(name) in REBALANCING,
                members={each.member_id: each.assignment for each in group.members}
                if group is not None
                else {},
                readings=readings,
            )
        return found

    async def _ages(
        self, now: _Look, begins: Mapping[TopicPartition, int]
    ) -> dict[tuple[str, TopicPartition], int]:
        """Read the next records of groups whose brokers don't tell their ages."""
        if self._unseen.get(LAG_IN_TIME) != NOT_SUPPORTED:
            return {}
        del self._unseen[LAG_IN_TIME]
        behind = [
            (name, at, max(offset, begins[at]))
            for name, offsets in sorted(now.committed.items())
            for at, offset in sorted(offsets.items())
            if at in begins and max(offset, begins[at]) < now.ends.get(at, 0)
        ]
        if len(behind) > AGES_MAX:
            left_out = len(behind) - AGES_MAX
            self._unseen[LAG_IN_TIME] = f"{left_out} partitions of groups are left out"
        by_group: defaultdict[str, dict[TopicPartition, int]] = defaultdict(dict)
        for name, at, offset in behind[:AGES_MAX]:
            by_group[name][at] = offset
        read = await self._each(LAG_IN_TIME, by_group, lambda name: self._next(by_group[name], now))
        return {(name, at): age_ms for name, found in read.items() for at, age_ms in found.items()}

    async def _next(
        self, positions: Mapping[TopicPartition, int], now: _Look
    ) -> dict[TopicPartition, int]:
        """Return the age of the first record at or after each position; 0 if there is none."""
        found: dict[TopicPartition, int] = {}
        async with self._log.consumer(
            auto_offset_reset="earliest", max_partition_fetch_bytes=AGE_FETCH_BYTES
        ) as consumer:
            consumer.assign(positions)
            for at, offset in positions.items():
                consumer.seek(at, offset)
            while len(found) < len(positions):
                polled = await consumer.poll(timeout_ms=AGE_POLL_MS)
                now_ms = self._clock.wall_ms()
                for at, records in polled.items():
                    found.setdefault(at, max(now_ms - records[0].timestamp_ms, 0))
                left = positions.keys() - found.keys()
                # Behind the last record are markers of transactions only.
                ended = [at for at in left if await consumer.position(at) >= now.ends[at]]
                found |= dict.fromkeys(ended, 0)
                if found:
                    consumer.pause(*found)
        return found

    async def _group(self, name: str) -> GroupDescription:
        (found,) = await self._admin.describe_groups([name])
        return found

    async def _lag(self, name: str) -> dict[TopicPartition, PartitionLagDescription]:
        return await self._admin.describe_group_lag(name)

    async def _transactions(self) -> tuple[TransactionView, ...]:
        now_ms = self._clock.wall_ms()
        listed = await self._seen(
            "transactions", self._admin.list_transactions(states=[ONGOING]), []
        )
        described = await self._each(
            "open transactions",
            [each.transactional_id for each in listed],
            lambda name: self._admin.describe_transactions([name]),
        )
        return tuple(
            TransactionView(
                transactional_id=name,
                open_ms=max(now_ms - each.start_ms, 0),
                timeout_ms=each.timeout_ms,
                partitions=each.partitions,
            )
            for name, (each,) in described.items()
            if each.start_ms is not None
        )

    async def _quorum(self) -> QuorumDescription | None:
        return await self._admin.describe_quorum()

    async def _subscriptions(self) -> dict[str, dict[str, str | None]]:
        names = await self._seen(
            "subscriptions to metrics of clients", self._admin.list_client_metrics(), []
        )
        found = await self._each(
            "subscriptions to metrics of clients", names, self._admin.describe_client_metrics
        )
        return {
            name: {key: each.value for key, each in settings.items()}
            for name, settings in found.items()
        }

    async def _offsets(
        self,
        look_up: Callable[[list[TopicPartition]], Awaitable[dict[TopicPartition, int]]],
        partitions: Iterable[PartitionDescription],
    ) -> dict[TopicPartition, int]:
        """Look up offsets of partitions that have a leader; the others would hold up the call."""
        led: defaultdict[str, list[TopicPartition]] = defaultdict(list)
        for each in partitions:
            if each.leader >= 0:
                led[each.topic].append(TopicPartition(each.topic, each.partition))
        found = await self._each("offsets of topics", led, lambda name: look_up(led[name]))
        return {at: offset for offsets in found.values() for at, offset in offsets.items()}

    async def _each(
        self, what: str, names: Iterable[K], call: Callable[[K], Awaitable[T]]
    ) -> dict[K, T]:
        """Call a function for each name; names for which it fails are left out."""
        found: dict[K, T] = {}

        async def one(name: K) -> None:
            async with self._room:
                try:
                    found[name] = await call(name)
                except (UnsupportedVersion, NotAuthorized) as error:
                    self._unseen[what] = _refusal(error)
                except StreamlogError as error:
                    if not (isinstance(error, LogError) and error.code in GONE):
                        self._unseen[what] = str(error)

        asked = list(names)
        patience_s = self._patience_s * (1 + len(asked) / PATIENCE_NAMES)
        try:
            async with asyncio.timeout(patience_s), asyncio.TaskGroup() as group:
                for name in asked:
                    group.create_task(one(name))
        except TimeoutError:
            # What came in time counts.
            self._note_silence(what)
        return found

    async def _seen(self, what: str, question: Awaitable[T], default: T) -> T:
        """Return the answer to a question; the default if the brokers refuse it."""
        try:
            async with asyncio.timeout(self._patience_s):
                return await question
        except TimeoutError:
            self._note_silence(what)
        except (UnsupportedVersion, NotAuthorized) as error:
            self._unseen[what] = _refusal(error)
        except StreamlogError as error:
            self._unseen[what] = str(error)
        return default

    @property
    def _patience_s(self) -> float:
        return PATIENCE_S if self._unanswered < UNANSWERED_MAX else IMPATIENT_S

    def _note_silence(self, what: str) -> None:
        self._unanswered += 1
        self._unseen[what] = NO_ANSWER


QUORUM: Final = "the quorum"
GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    }
)
"""What was there a moment before is deleted: there is nothing to see."""
NO_ANSWER: Final = "no answer in time"
NOT_SUPPORTED: Final = "these brokers do not support the request"
NOT_ALLOWED: Final = "this user may not see it"
REFUSALS: Final = frozenset({NOT_SUPPORTED, NOT_ALLOWED})


def _refusal(error: UnsupportedVersion | NotAuthorized) -> str:
    return NOT_SUPPORTED if isinstance(error, UnsupportedVersion) else NOT_ALLOWED


def _rates(
    before: _Look,
    now: _Look,
    after: Mapping[TopicPartition, int],
    earlier: Mapping[TopicPartition, int],
) -> dict[TopicPartition, float]:
    """Return by how many offsets per second partitions have advanced between two looks."""
    passed_s = max((now.at_ms - before.at_ms) / 1000, 0.001)
    return {
        at: (offset - earlier[at]) / passed_s
        for at, offset in after.items()
        # A log that was created again, or offsets that were reset, say nothing.
        if at in earlier and offset >= earlier[at]
    }


def _sizes(dirs: Iterable[LogDir]) -> dict[TopicPartition, int]:
    """Return the size of the largest replica of each partition."""
    found: dict[TopicPartition, int] = {}
    for each in dirs:
        for at, held in each.sizes.items():
            found[at] = max(held, found.get(at, 0))
    return found


def _disks(now: _Look, before: _Look | None) -> tuple[DiskView, ...]:
    earlier = {} if before is None else {(e.node_id, e.path): e.sizes for e in before.dirs}
    passed_s = 0.0 if before is None else max((now.at_ms - before.at_ms) / 1000, 0.001)
    return tuple(
        DiskView(
            node_id=each.node_id,
            path=each.path,
            is_failed=each.error is not None,
            used_bytes=sum(each.sizes.values()),
            total_bytes=each.total_bytes if each.total_bytes >= 0 else None,
            usable_bytes=each.usable_bytes if each.usable_bytes >= 0 else None,
            growth={
                at: (held - earlier[each.node_id, each.path][at]) / passed_s
                for at, held in each.sizes.items()
                if at in earlier.get((each.node_id, each.path), {})
            },
            sizes=each.sizes,
        )
        for each in now.dirs
    )
