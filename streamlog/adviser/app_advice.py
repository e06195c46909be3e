"""App advice: what is wrong between an app and its log.

An `AppView` has the app's topology, what it expects of its own topics, and a sample of its inputs.
As in `cluster_advice`, each function looks for one kind of fault; `APP_RULES` lists them.

Rule of the module: no I/O and no user code. Samples hold event times, which `app_look` has computed
with the app's functions. A sample begins anywhere in a partition, so it finds fewer late records
than there are, and never more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from streamlog.adviser.log_view import (
    Diagnosis,
    LogView,
    Thresholds,
    TopicView,
    listed,
    span,
)
from streamlog.errors import TopologyError, quantity
from streamlog.metrics.heavy_hitters import HeavyHitters
from streamlog.nodes.stream_nodes import (
    Entry,
    JoinSide,
    Node,
    SetTimestamp,
    Sink,
    StreamJoin,
    TableSource,
)
from streamlog.nodes.table_nodes import SuppressUntilClosed
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.nodes.window_nodes import WindowedRows
from streamlog.record import TopicPartition
from streamlog.topology import Subtopology, Topology, writers_of
from streamlog.windows.definitions import Hopping, Tumbling, Windows

EXACTLY_ONCE: Final = "exactly_once"
COUNTERS: Final = 200
KEY_SHOWN: Final = 40
MARKS: Final = "mark.quiet.ms"
NO_MARKS: Final = "-1"
GRACE_QUANTILE: Final = 0.99


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """The newest records of a partition, in offset order."""

    times_ms: Sequence[int] = ()
    """Their event times; -1 for a record that has none."""
    keys: Sequence[bytes | None] = ()


class AppView(msgspec.Struct, frozen=True, kw_only=True):
    """An app, as its program declares it and its log shows it."""

    topology: Topology
    module: str = "MODULE"
    """What `-A` names."""
    guarantee: str = EXACTLY_ONCE
    transaction_timeout_ms: int = 10_000
    commit_interval_ms: int = 500
    standby_replicas: int = 0
    changelog_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The settings with which workers create changelogs."""
    samples: Mapping[TopicPartition, SampleView] = msgspec.field(default_factory=dict)
    now_ms: int = 0

    @property
    def where(self) -> str:
        """How a diagnosis calls it."""
        return f"app {self.topology.app_id}"

    @property
    def inputs(self) -> dict[str, TopicSpec]:
        """The topics that it reads and that others write."""
        return {
            name: spec
            for sub in self.topology.subtopologies
            for name, spec in sub.topics.items()
            if not spec.is_managed
        }


AppRule: TypeAlias = Callable[[AppView, LogView, Thresholds], Iterator[Diagnosis]]


def _missing(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    lacking = _missing_inputs(app, log)
    if lacking:
        yield Diagnosis(
            "critical",
            "missing-source",
            app.where,
            f"it reads topics that do not exist: {listed(lacking)}",
            "its workers end at their start",
            log.command(f"topics create {lacking[0]} --partitions N"),
        )


def _missing_inputs(app: AppView, log: LogView) -> list[str]:
    if log.url.startswith("embedded:"):
        return []  # Workers create them.
    return sorted(
        name
        for name, spec in app.inputs.items()
        if name not in log.topics and spec.partitions is None
    )


def _counts(app: AppView, log: LogView) -> dict[str, int] | None:
    """Return the partition counts of the app's topics; None if they can't be worked out."""
    try:
        return app.topology.partition_counts(_known(app, log))
    except TopologyError:
        return None


def _known(app: AppView, log: LogView) -> dict[str, int]:
    # A topic that does not exist yet gets the number that the app declares.
    declared = {name: spec.partitions or 1 for name, spec in app.inputs.items()}
    return declared | {name: len(topic.partitions) for name, topic in log.topics.items()}


def _partition_counts(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if _missing_inputs(app, log):
        return
    try:
        counts = app.topology.partition_counts(_known(app, log))
    except TopologyError as error:
        yield Diagnosis(
            "critical",
            "partition-counts",
            app.where,
            str(error),
            "its workers end at their start: equal keys would meet in different tasks",
            "give the topics equal numbers of partitions, or repartition one of the streams",
        )
        return
    for changelog, wanted in app.topology.changelog_partitions(counts).items():
        topic = log.topics.get(changelog)
        if topic is not None and len(topic.partitions) != wanted:
            yield Diagnosis(
                "critical",
                "partition-counts",
                f"topic {changelog}",
                f"the changelog has {quantity(len(topic.partitions), 'partition')}, and its inputs"
                f" need {wanted}",
                "its workers end at their start: state can't be moved between partitions",
                "give the inputs their former number of partitions; or start over, without the"
                " state: " + log.command(f"topics delete {changelog}"),
            )


def _changelogs(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for sub in app.topology.subtopologies:
        topic = log.topics.get(sub.changelog_topic or "")
        if topic is None or not topic.settings:
            continue
        where = f"topic {topic.name}"
        if "compact" not in topic.policies or topic.retention_ms or topic.retention_bytes:
            yield Diagnosis(
                "critical",
                "changelog-retention",
                where,
                f"the changelog has cleanup.policy={topic.settings.get('cleanup.policy')}",
                "rows that were not written for a while are deleted; a restore then loses state",
                log.alter_topic(topic.name, "cleanup.policy", "compact"),
            )
        for name in ("max.message.bytes", "min.compaction.lag.ms", "delete.retention.ms"):
            wanted, there = app.changelog_settings.get(name), topic.number(name)
            if wanted is not None and there is not None and there < int(wanted):
                yield Diagnosis(
                    "warning",
                    "changelog-settings",
                    where,
                    f"the changelog has {name}={there}, less than the app's {wanted}",
                    _CHANGELOG_OUTLOOK[name],
                    log.alter_topic(topic.name, name, wanted),
                )


_CHANGELOG_OUTLOOK: Final = {
    "max.message.bytes": "a large commit is refused, and the worker ends",
    "min.compaction.lag.ms": "a new owner of a task may miss late records of the former one",
    "delete.retention.ms": "a restore that takes longer brings deleted rows back",
}


def _repartitions(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for name, spec in sorted(app.topology.topics.items()):
        topic = log.topics.get(name)
        if topic is None or not spec.internal:
            continue
        if topic.retention_ms is not None or topic.retention_bytes is not None:
            yield Diagnosis(
                "critical",
                "repartition-retention",
                f"topic {name}",
                "the repartition topic has a retention",
                "records keep their event time, so old ones are deleted before they are read",
                log.alter_topic(name, "retention.ms", "-1 --set retention.bytes=-1"),
            )


def _event_times(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    own = {sub.changelog_topic or "" for sub in app.topology.subtopologies}
    own |= {name for name, spec in app.topology.topics.items() if spec.is_managed}
    for name in sorted(each for each in own if each in log.topics):
        if log.topics[name].settings.get("message.timestamp.type") == "LogAppendTime":
            yield Diagnosis(
                "critical",
                "append-time",
                f"topic {name}",
                "message.timestamp.type is LogAppendTime in a topic of the app's own",
                "event times are replaced, and windows take records into the wrong ones",
                log.alter_topic(name, "message.timestamp.type", "CreateTime"),
            )


def _transactions(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if app.guarantee != EXACTLY_ONCE:
        return
    timeout_ms = app.transaction_timeout_ms
    low = [
        each.name
        for each in log.brokers
        if (limit := each.settings.get("transaction.max.timeout.ms") or "").isdecimal()
        and int(limit) < timeout_ms
    ]
    if low:
        yield Diagnosis(
            "critical",
            "transaction-timeout",
            listed(low),
            f"transaction.max.timeout.ms is below the {timeout_ms} ms that workers ask for",
            "a worker with exactly_once ends at its first commit",
            log.command(
                f"configs alter --broker all --set transaction.max.timeout.ms={15 * 60_000}"
            ),
        )
    if app.commit_interval_ms >= timeout_ms:
        yield Diagnosis(
            "warning",
            "commit-interval",
            app.where,
            f"commit_interval is {span(app.commit_interval_ms)}, and a transaction may take"
            f" {span(timeout_ms)}",
            "one commit holds so many records that it may be aborted and repeated",
            f"set App(commit_interval=) below {span(timeout_ms)}",
        )


class _Origin(msgspec.Struct, frozen=True):
    """A topic that a node's records come from."""

    spec: TopicSpec
    is_retimed: bool
    """Whether `set_timestamp` makes new times on the way."""
    is_far: bool
    """Whether a repartition topic is on the way."""


def _origins(topology: Topology, sub: Subtopology, node: Node) -> list[_Origin]:
    """Return the topics of others that a node's records come from."""
    found: dict[str, _Origin] = {}
    pending = [(sub, node, False, False)]
    seen = set[tuple[int, str]]()
    while pending:
        here, start, retimed, far = pending.pop()
        if (here.number, start.name) in seen:
            continue
        seen.add((here.number, start.name))
        above = [start, *here.ancestors(start)]
        retimed = retimed or any(isinstance(each, SetTimestamp) for each in above)
        for each in above:
            if isinstance(each, Entry) and each.topic.internal:
                pending += [
                    (other, sink, retimed, True)
                    for other, sink in writers_of(each.topic.name, topology.subtopologies)
                ]
            elif isinstance(each, Entry):
                found[each.topic.name] = _Origin(each.topic, retimed, far)
    return [found[name] for name in sorted(found)]


def _reads(app: AppView) -> Iterator[tuple[Node, _Origin]]:
    """Yield each node with each topic of others that its records come from."""
    for sub in app.topology.subtopologies:
        for node in sub.nodes:
            for origin in _origins(app.topology, sub, node):
                yield node, origin


def _needs_ms(node: Node) -> int | None:
    """Return how long a node needs the records above it; None if it does not say."""
    if isinstance(node, WindowedRows):
        windows = _windows(node)
        return None if windows is None else windows.size_ms + windows.grace_ms
    return node.keep_ms if isinstance(node, JoinSide) else None


def _windows(node: Node) -> Windows | None:
    windows = getattr(node, "windows", None)
    return windows if isinstance(windows, Windows) else None


def _retention(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield inputs whose records are deleted while a window or a join still needs them."""
    for node, origin in _reads(app):
        needed_ms, topic = _needs_ms(node), log.topics.get(origin.spec.name)
        kept_ms = None if topic is None else topic.retention_ms
        if topic is None or kept_ms is None or needed_ms is None or kept_ms >= needed_ms:
            continue
        yield Diagnosis(
            "critical",
            "short-retention",
            f"topic {topic.name}",
            f"retention.ms is {span(kept_ms)}, and {node.name!r} needs records for"
            f" {span(needed_ms)}",
            "a worker that was down, and every backfill, lacks records of open windows",
            log.alter_topic(topic.name, "retention.ms", 2 * needed_ms),
        )


def _expiring_rows(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield outputs whose rows are past their retention when they are written."""
    for topic, above, windows in _windowed_sinks(app, log):
        kept_ms, age_ms = topic.retention_ms, windows.size_ms + windows.grace_ms
        if kept_ms is not None and kept_ms <= age_ms:
            yield Diagnosis(
                "warning",
                "expiring-rows",
                f"topic {topic.name}",
                f"retention.ms is {span(kept_ms)}, and rows of {above.name!r} may be"
                f" {span(age_ms)} old when they are written",
                "rows are deleted soon after they are written, before all have read them",
                log.alter_topic(topic.name, "retention.ms", 2 * age_ms),
            )


def _windowed_sinks(app: AppView, log: LogView) -> Iterator[tuple[TopicView, Node, Windows]]:
    """Yield the topics that the app writes, with windowed nodes whose rows they get."""
    sinks = [
        (sub, node, log.topics[node.topic.name])
        for sub in app.topology.subtopologies
        for node in sub.nodes
        if isinstance(node, Sink) and node.topic.name in log.topics
    ]
    for sub, node, topic in sinks:
        for above in sub.ancestors(node):
            windows = _windows(above)
            if windows is not None and isinstance(above, WindowedRows):
                yield topic, above, windows


def _tables(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield topics of tables that lose rows by retention."""
    specs = {table.topic.name for table in app.topology.global_tables}
    specs |= {node.topic.name for node in app.topology.nodes if isinstance(node, TableSource)}
    for name in sorted(specs & log.topics.keys()):
        topic = log.topics[name]
        if topic.retention_ms is not None:
            yield Diagnosis(
                "warning",
                "table-retention",
                f"topic {name}",
                f"a table reads it, and retention.ms is {span(topic.retention_ms)}",
                "a backfill, a new worker of a global table and a new app lack the older rows",
                log.alter_topic(name, "cleanup.policy", "compact"),
            )


def _late(app: AppView, _: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for node, origin in _reads(app):
        windows = _windows(node)
        # Behind `set_timestamp`, times are others than those of the sample.
        if windows is None or not isinstance(node, WindowedRows) or origin.is_retimed:
            continue
        if node.late is not None:
            continue
        name = origin.spec.name
        samples = [each for at, each in sorted(app.samples.items()) if at.topic == name]
        behind_ms, total = _late_by(windows, samples)
        if total < thresholds.sample_records or len(behind_ms) <= thresholds.late_share * total:
            continue
        enough_ms = windows.grace_ms + behind_ms[int(GRACE_QUANTILE * (len(behind_ms) - 1))]
        yield Diagnosis(
            "warning",
            "late-records",
            f"topic {name}, node {node.name}",
            f"{len(behind_ms)} of {total} sampled records come after their window has closed, by"
            f" grace={span(windows.grace_ms)}",
            "they are dropped, and only counted",
            f"set grace='{-(-enough_ms // 1000)}s' or longer, or keep them by .late(topic)",
        )


def _late_by(windows: Windows, samples: Sequence[SampleView]) -> tuple[list[int], int]:
    """Return by how much more grace late records would be in time, sorted; and all records."""
    found, total = list[int](), 0
    for sample in samples:
        times = [each for each in sample.times_ms if each >= 0]
        total += len(times)
        for now_ms, time_ms in zip(accumulate(times, max), times, strict=True):
            lacking = now_ms - last_end_ms(windows, time_ms) - windows.grace_ms
            if lacking >= 0:
                found.append(lacking + 1)
    return sorted(found), total


def last_end_ms(windows: Windows, time_ms: int) -> int:
    """Return the end of the last window that a record belongs to; never too early."""
    match windows:
        case Tumbling(size_ms=size_ms, offset_ms=offset_ms):
            return (time_ms - offset_ms) // size_ms * size_ms + size_ms + offset_ms
        case Hopping(size_ms=size_ms, step_ms=step_ms):
            return time_ms // step_ms * step_ms + size_ms
    return time_ms + windows.size_ms


def _future(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    ahead: dict[str, int] = {}
    for at, sample in app.samples.items():
        newest_ms = max(sample.times_ms, default=-1)
        spec = app.inputs.get(at.topic)
        limit_ms = 0 if spec is None else spec.timestamp_ahead_max_ms or 0
        if newest_ms - app.now_ms > max(AHEAD_MS, limit_ms):
            ahead[at.topic] = max(ahead.get(at.topic, 0), newest_ms - app.now_ms)
    for topic, ahead_ms in sorted(ahead.items()):
        yield Diagnosis(
            "warning",
            "future-times",
            f"topic {topic}",
            f"records have event times up to {span(ahead_ms)} ahead of the clock",
            "stream time jumps there, and all records after them are late",
            "set App(timestamp_ahead_max=), correct the producer, and then, with the workers"
            f" stopped: {log.command(f'-A {app.module} stream-time --reset-to now')}",
        )


AHEAD_MS: Final = 60 * 60 * 1000
"""Event times may be this far ahead of the clock: clocks differ, and some events are planned."""


def _hot_keys(app: AppView, _: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    # By partition: it is one task that a hot key slows down.
    for at in sorted(each for each in app.samples if each.topic in app.inputs):
        keys = app.samples[at].keys
        hitters: HeavyHitters[bytes | None] = HeavyHitters(COUNTERS)
        hitters.add(key for key in keys if key is not None)
        top = next(iter(hitters.top(1)), None)
        if top is None or hitters.total < thresholds.sample_records:
            continue
        share = (top.count - top.error) / hitters.total
        if share > thresholds.hot_key_share and _spreads(keys):
            yield Diagnosis(
                "warning",
                "hot-key",
                f"topic {at.topic}, partition {at.partition}",
                f"key {_shown(top.item)} has {share:.0%} of the last {hitters.total} records there",
                "the task of this partition limits the app, and more workers do not help",
                "give the key a suffix and aggregate in two steps, or filter it out; GET /hot-keys"
                " of a worker counts all records (docs/watching.md)",
            )


def _spreads(keys: Sequence[bytes | None]) -> bool:
    """Whether there are enough keys for one of them to stand out."""
    return len({*keys}) >= SEVERAL


SEVERAL: Final = 10
"""With fewer keys in a partition, each has a large share, and nothing is wrong."""


def _shown(key: bytes | None) -> str:
    text = (key or b"").decode(errors="backslashreplace")
    return repr(text if len(text) <= KEY_SHOWN else text[:KEY_SHOWN] + "...")


def _quiet(app: AppView, log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    """Yield partitions without records that hold back stream time for good."""
    for node, origin in _reads(app):
        topic = log.topics.get(origin.spec.name)
        if topic is None or not _waits_for_time(node) or not _lacks_marks(log, topic, origin):
            continue
        quiet = _quiet_partitions(app, topic, thresholds)
        if quiet:
            yield Diagnosis(
                "warning",
                "quiet-partitions",
                listed(f"{topic.name}-{number}" for number in quiet),
                f"no records come there, and {node.name!r} waits for their event time",
                "windows of its tasks do not close, and their rows are not emitted",
                "declare .idle_after('30s') on the windows, or spread the keys; "
                + _marks_remedy(log, topic, origin),
            )


def _waits_for_time(node: Node) -> bool:
    """Whether a node emits rows when time passes, and waits for every source without limit."""
    if node.waits_idle_ms is not None:
        return False
    if isinstance(node, WindowedRows):
        return node.emit.is_final
    return isinstance(node, SuppressUntilClosed) or (
        isinstance(node, StreamJoin) and node.unmatched is not None
    )


def _lacks_marks(log: LogView, topic: TopicView, origin: _Origin) -> bool:
    """Whether no time mark advances a quiet partition of the topic."""
    if origin.is_retimed:
        return True
    if not log.is_streamlog:
        # Workers advance the time of their own tasks.
        return origin.is_far
    return topic.settings.get(MARKS) == NO_MARKS or "compact" in topic.policies


def _marks_remedy(log: LogView, topic: TopicView, origin: _Origin) -> str:
    if origin.is_retimed:
        return "or declare timestamp= on the topic in place of set_timestamp"
    if topic.settings.get(MARKS) == NO_MARKS:
        return "or let the broker mark time: " + log.command(
            f"configs alter --topic {topic.name} --unset {MARKS}"
        )
    return "see docs/windows.md"


def _quiet_partitions(app: AppView, topic: TopicView, thresholds: Thresholds) -> list[int]:
    newest: dict[int, int] = {}
    for each in topic.partitions:
        if topic.records.get(each.partition) == 0:
            newest[each.partition] = -1
        sample = app.samples.get(TopicPartition(topic.name, each.partition))
        if sample is not None and sample.times_ms:
            newest[each.partition] = max(sample.times_ms)
    reached_ms = max(newest.values(), default=-1)
    # Where nothing has arrived at all, nothing waits.
    if reached_ms < 0:
        return []
    return sorted(n for n, at_ms in newest.items() if reached_ms - at_ms > thresholds.quiet_ms)


def _workers(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    group, counts = log.groups.get(app.topology.app_id), _counts(app, log)
    if group is None or counts is None or not app.topology.subtopologies:
        return
    tasks = sum(sub.tasks(counts) for sub in app.topology.subtopologies)
    useful = tasks * (1 + app.standby_replicas)
    if len(group.members) > useful:
        yield Diagnosis(
            "warning",
            "idle-workers",
            app.where,
            f"{quantity(len(group.members), 'worker')} share {quantity(tasks, 'task')}"
            + (f" and their {app.standby_replicas} standby replicas" if useful > tasks else ""),
            "workers without a task cost memory and connections, and only wait for a failure",
            f"run at most {useful} workers, or give the inputs more partitions before the app has"
            " state (docs/keys-and-partitions.md)",
        )


def _orphans(app: AppView, log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield changelogs and repartition topics of the app that its program no longer uses."""
    app_id = app.topology.app_id
    used = {*app.topology.topics} | {s.changelog_topic for s in app.topology.subtopologies}
    pattern = re.compile(re.escape(app_id) + r"-(?:\d+-changelog|.+-repartition)")
    others = [group for group in log.groups if group.startswith(f"{app_id}-")]
    left = [
        name
        for name in sorted(log.topics)
        if pattern.fullmatch(name)
        and name not in used
        # The topics of a version that runs alongside begin with its own id.
        and not any(name.startswith(f"{other}-") for other in others)
    ]
    if left:
        yield Diagnosis(
            "warning",
            "orphaned-topics",
            listed(left),
            f"{app.where} does not use them any more",
            "they keep disk space, replicas and open files",
            "if no older version is to run again: " + log.command(f"topics delete {left[0]}"),
        )


APP_RULES: Final[tuple[AppRule, ...]] = (
    _missing,
    _partition_counts,
    _changelogs,
    _repartitions,
    _event_times,
    _transactions,
    _retention,
    _expiring_rows,
    _tables,
    _late,
    _future,
    _hot_keys,
    _quiet,
    _workers,
    _orphans,
)
