"""LogLook: describes a running log as a `LogView`, by admin requests only.

It looks twice, some seconds apart: rates of writes, of groups and of disks are the differences.
What a user may not see, or a broker does not support, is left out and named in `LogView.unseen`.

Rule of the module: it changes nothing, and has at most `CONCURRENT` requests in flight. Not done
here: what is wrong with the view (`cluster_advice`, `reader_advice`), apps (`app_look`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from streamlog.adviser.log_view import (
    BrokerView,
    DiskView,
    GroupView,
    LogView,
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
    ClusterReports,
    PartitionDescription,
    QuorumDescription,
)
from streamlog.client.consumer import Consumer
from streamlog.clock import Clock, SystemClock
from streamlog.errors import ConnectionLost, StreamlogError, UnsupportedVersion
from streamlog.log import Log
from streamlog.record import TopicPartition

CONCURRENT: Final = 16
"""Requests in flight at a time: the adviser must not be a load of its own."""
GROUPS_MAX: Final = 2_000
"""Of more groups, the first ones are described."""
TOPICS_MAX: Final = 5_000
"""Of more topics, the settings of the first ones are read."""
ONGOING: Final = "Ongoing"

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
        self._room = asyncio.Semaphore(CONCURRENT)

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
            return await self._describe(consumer, before)

    async def _figures(self, consumer: Consumer) -> _Look:
        partitions = await self._admin.describe_partitions()
        found = _Look(self._clock.now_ms())
        found.ends = await self._offsets(consumer.end_offsets, partitions)
        listed = await self._seen("groups", self._admin.list_groups(), [])
        found.states = {each.group_id: each.state for each in listed[:GROUPS_MAX]}
        found.committed = await self._each(
            "offsets of groups", found.states, self._admin.group_offsets
        )
        found.dirs = await self._seen("log directories", self._admin.describe_log_dirs(), [])
        return found

    async def _describe(self, consumer: Consumer, before: _Look | None) -> LogView:
        admin = self._admin
        partitions = await admin.describe_partitions()
        now = await self._figures(consumer)
        watched_s = 0.0 if before is None else (now.at_ms - before.at_ms) / 1000
        is_streamlog = await self._seen("the brokers' vendor", admin.is_streamlog(), default=True)
        if not is_streamlog:
            self._unseen["clocks, releases and builds of brokers"] = "only streamlog's report them"
        brokers = await self._brokers()
        cluster = await admin.describe_cluster()
        begins = await self._offsets(consumer.begin_offsets, partitions)
        topics = await self._topics(partitions, begins, now, before)
        moves = await self._seen("moves", admin.list_partition_reassignments(), {})
        return LogView(
            url=self._url,
            is_streamlog=is_streamlog,
            controller=cluster.controller,
            brokers=brokers,
            disks=_disks(now, before),
            topics=topics,
            groups=await self._groups(now, before),
            transactions=await self._transactions(),
            quorum=await self._seen("the quorum", self._quorum(), None),
            moves=len(moves),
            subscriptions=await self._subscriptions(),
            watched_s=watched_s,
            unseen=tuple(f"{what}: {why}" for what, why in sorted(self._unseen.items())),
        )

    async def _brokers(self) -> tuple[BrokerView, ...]:
        cluster = await self._admin.describe_cluster()
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
        listed = await self._admin.list_topics(internal=True)
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

    async def _groups(self, now: _Look, before: _Look | None) -> dict[str, GroupView]:
        described = await self._each("members of groups", now.states, self._group)
        lags = await self._each("lag of groups in time", now.states, self._lag)
        found = {}
        for name, state in now.states.items():
            group = described.get(name)
            known, earlier = lags.get(name, {}), {} if before is None else before.committed
            rates = (
                {}
                if before is None or name not in earlier
                else _rates(before, now, now.committed.get(name, {}), earlier[name])
            )
            written = {} if before is None else _rates(before, now, now.ends, before.ends)
            found[name] = GroupView(
                group_id=name,
                kind="classic" if group is None else group.kind,
                state=state,
                was_rebalancing=before is not None and before.states.get(name) in REBALANCING,
                members={}
                if group is None
                else {each.member_id: each.assignment for each in group.members},
                readings={
                    at: _reading(
                        committed, now.ends.get(at), known.get(at), rates.get(at), written.get(at)
                    )
                    for at, committed in now.committed.get(name, {}).items()
                },
            )
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
                except UnsupportedVersion:
                    self._unseen[what] = NOT_SUPPORTED
                except StreamlogError as error:
                    self._unseen[what] = str(error)

        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(one(name))
        return found

    async def _seen(self, what: str, question: Awaitable[T], default: T) -> T:
        """Return the answer to a question; the default if the brokers refuse it."""
        try:
            return await question
        except ConnectionLost:
            raise
        except UnsupportedVersion:
            self._unseen[what] = NOT_SUPPORTED
        except StreamlogError as error:
            self._unseen[what] = str(error)
        return default


NOT_SUPPORTED: Final = "these brokers do not support the request"


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


def _reading(
    committed: int,
    end: int | None,
    known: PartitionLagDescription | None,
    consume_rate: float | None,
    produce_rate: float | None,
) -> ReadingView:
    return ReadingView(
        committed=committed,
        lag=None if end is None else max(end - committed, 0),
        lag_ms=None if known is None else known.lag_ms,
        lost=None if known is None else known.lost,
        consume_rate=consume_rate,
        produce_rate=produce_rate,
    )


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
