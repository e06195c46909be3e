"""App look: describes an app as an `AppView`, with samples of the topics that it reads.

A sample is the newest records of a partition. Their event times come from the app's own serdes and
`timestamp=` functions, so it reads what a worker would read.

Rule of the module: it joins no group and commits nothing, and what it reads is bounded by
`RECORDS_MAX` and `PARTITIONS_MAX`. A record that the app's functions refuse has no time.
"""

from __future__ import annotations

from typing import Final

from streamlog.adviser.app_advice import AppView, SampleView
from streamlog.adviser.log_view import LogView
from streamlog.clock import Clock, SystemClock
from streamlog.durations import when_ms
from streamlog.errors import StreamlogError
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import TopicPartition
from streamlog.records.record_columns import RecordColumns
from streamlog.topology import Topology
from streamlog.worker.commit.exactly_once import TRANSACTION_TIMEOUT_MS
from streamlog.worker.topics.app_topics import CHANGELOG_CONFIGS

RECORDS_MAX: Final = 2_000
"""Records of a partition that a sample has at most."""
PARTITIONS_MAX: Final = 64
"""Partitions of a topic that are sampled at most."""
NO_TIME: Final = -1


async def look_at_app(
    topology: Topology,
    log: Log,
    view: LogView,
    *,
    module: str,
    guarantee: str,
    commit_interval_ms: int,
    standby_replicas: int,
    records: int = RECORDS_MAX,
    clock: Clock | None = None,
) -> AppView:
    """Describe an app; samples have at most `records` records of each partition, 0 for none."""
    app = AppView(topology=topology)
    samples: dict[TopicPartition, SampleView] = {}
    for name, spec in sorted(app.inputs.items() if records else ()):
        topic = view.topics.get(name)
        if topic is None:
            continue
        for number in sorted(topic.ends)[:PARTITIONS_MAX]:
            at = TopicPartition(name, number)
            begin, end = topic.begins.get(number, 0), topic.ends[number]
            samples[at] = await _sample(log, spec, at, max(begin, end - records), end)
    return AppView(
        topology=topology,
        module=module,
        guarantee=guarantee,
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        commit_interval_ms=commit_interval_ms,
        standby_replicas=standby_replicas,
        changelog_settings=CHANGELOG_CONFIGS,
        samples=samples,
        now_ms=(clock or SystemClock()).wall_ms(),
    )


async def _sample(
    log: Log, spec: TopicSpec, at: TopicPartition, begin: int, end: int
) -> SampleView:
    try:
        # Records of open transactions count: what is late when it is committed is late now.
        found = await log.read_range(at, begin, end, isolation="read_uncommitted")
    except StreamlogError:
        return SampleView()
    return SampleView(times_ms=_times(spec, found), keys=found.keys)


def _times(spec: TopicSpec, records: RecordColumns) -> list[int]:
    if spec.timestamp is None:
        return records.timestamps
    return [_time(spec, value) for value in records.values]


def _time(spec: TopicSpec, value: bytes | None) -> int:
    if spec.timestamp is None or value is None:
        return NO_TIME
    try:
        return when_ms(spec.timestamp(spec.value.loads(value)))
    except Exception:  # noqa: BLE001 - a user's serde and function: workers report such records
        return NO_TIME
