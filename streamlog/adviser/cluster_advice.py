"""Cluster advice: what is wrong with brokers, the quorum, disks, and topics.

Each function looks for one kind of fault in a `LogView` and yields a diagnosis for each topic or
broker that has it, or one for all. `CLUSTER_RULES` lists them.

Rule of the module: no I/O, no clock; nothing is reported for what is not known. Not done here:
groups and transactions (`reader_advice`), apps (`app_advice`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import mean
from typing import Final, TypeAlias

from streamlog.adviser.log_view import (
    NO_NODE,
    Diagnosis,
    DiskView,
    LogView,
    Thresholds,
    TopicView,
    listed,
    size,
    span,
)
from streamlog.client.admin.cluster_descriptions import PartitionDescription
from streamlog.errors import quantity
from streamlog.record import TopicPartition

Rule: TypeAlias = Callable[[LogView, Thresholds], Iterator[Diagnosis]]

REDUNDANT: Final = 3
"""From this replication factor on, `min.insync.replicas` can be 2."""
VERBOSE: Final = frozenset({"DEBUG", "TRACE"})
SKEW_SHARE_MAX: Final = 0.8
"""The share of one partition that counts as skew in a topic with few partitions."""
BALANCE_RATIO: Final = 1.5
BALANCE_BYTES_MIN: Final = 1024**3
DAY_MS: Final = 24 * 60 * 60 * 1000
THROTTLED: Final = ("leader.replication.throttled", "follower.replication.throttled")


def _controller(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if log.controller == NO_NODE:
        yield Diagnosis(
            "critical",
            "no-controller",
            "cluster",
            "no controller is active, or it does not answer",
            "no topic can be created, and no partition gets a new leader when its broker fails",
            "start the voters that are down or frozen, until a majority runs",
        )


def _quorum(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    quorum = log.quorum
    if quorum is None:
        return
    voters = len(quorum.voters)
    if voters > 1 and voters % 2 == 0:
        yield Diagnosis(
            "warning",
            "even-voters",
            "quorum",
            f"the quorum has {voters} voters",
            f"it tolerates as few failures as {voters - 1} voters would, with one more to fail",
            "add a voter: streamlog cluster grow (docs/operations.md, From one broker to three)",
        )
    for each in quorum.voters:
        if each.is_rejoining or quorum.lag(each) > thresholds.voter_lag:
            state = (
                "is rejoining and does not vote yet"
                if each.is_rejoining
                else f"is {quorum.lag(each)} entries of the metadata log behind"
            )
            yield Diagnosis(
                "critical",
                "voter-behind",
                f"node {each.node_id}",
                f"the voter {state}",
                "the quorum tolerates one failure less than it seems to",
                f"start it, or replace its disk: {log.command('cluster status --wait 60')}",
            )


def _brokers_down(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    known = {each.node_id for each in log.brokers}
    holders = {
        node for topic in log.topics.values() for each in topic.partitions for node in each.replicas
    }
    states = dict.fromkeys(holders - known, "is not registered, and has replicas")
    for each in log.brokers:
        if each.is_fenced:
            states[each.node_id] = "is fenced: it does not reach the controller"
        elif each.silent:
            states[each.node_id] = f"does not answer: {each.silent}"
    for node, state in sorted(states.items()):
        yield Diagnosis(
            "critical",
            "broker-down",
            f"broker {node}",
            f"the broker {state}",
            "its partitions have a replica less; the next failure may stop them",
            "start the broker; if it is gone for good, move its replicas: "
            + log.command(f"cluster plan --drain {node} --execute"),
        )


def _cordoned(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for each in log.brokers:
        if each.is_cordoned:
            yield Diagnosis(
                "warning",
                "cordoned-broker",
                each.name,
                "the broker is cordoned",
                "new partitions go to the other brokers only, and fewer brokers can hold replicas",
                log.command(f"cluster uncordon {each.node_id}")
                + ", or, to take it out of service, "
                + log.command(f"cluster plan --drain {each.node_id} --execute"),
            )


def _versions(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    by_version: dict[str, list[str]] = {}
    for each in log.brokers:
        if each.version is not None:
            by_version.setdefault(each.version, []).append(str(each.node_id))
    differs = len(by_version) > 1
    shown = "; ".join(f"{v} on {listed(ids)}" for v, ids in sorted(by_version.items()))
    if not by_version:
        apis = {tuple(sorted(each.apis.items())) for each in log.brokers if each.apis}
        differs, shown = len(apis) > 1, "their API versions differ"
    if differs:
        yield Diagnosis(
            "warning",
            "mixed-versions",
            "cluster",
            f"brokers run different releases: {shown}",
            "clients and brokers keep to what the oldest release knows, and faults that a newer"
            " one has mended stay",
            "finish the rolling upgrade (docs/operations.md)",
        )


def _builds(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    slow = [each for each in log.brokers if each.interpreted]
    if slow:
        yield Diagnosis(
            "warning",
            "interpreted-modules",
            listed(each.name for each in slow),
            f"{max(each.interpreted or 0 for each in slow)} hot modules are not compiled",
            "the broker needs a multiple of the CPU time for each record",
            "install a wheel for its Python, or run `make compile`; `streamlog doctor` on its"
            " machine lists the modules",
        )


def _descriptors(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for each in log.brokers:
        wanted = each.settings.get("max.connections") or ""
        if each.connections is None or not wanted.isdecimal() or each.connections >= int(wanted):
            continue
        yield Diagnosis(
            "warning",
            "few-descriptors",
            each.name,
            f"its limit of open files allows {each.connections} connections, fewer than"
            f" max.connections={wanted}",
            "it refuses clients before the limit that is set",
            "raise the limit (ulimit -Hn, LimitNOFILE=), or "
            + log.command(f"configs alter --broker all --set max.connections={each.connections}"),
        )


def _clocks(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    known = [each for each in log.brokers if each.clock_ahead_ms is not None]
    ahead = {each.name: each.clock_ahead_ms or 0 for each in known}
    if not ahead:
        return
    error_ms = 2 * max(each.clock_error_ms for each in known)
    first, last = min(ahead, key=ahead.__getitem__), max(ahead, key=ahead.__getitem__)
    apart_ms = ahead[last] - ahead[first]
    if apart_ms > thresholds.clock_ms + error_ms:
        yield Diagnosis(
            "warning",
            "clocks-apart",
            f"{first} and {last}",
            f"their clocks are {span(apart_ms)} apart",
            "retention, LogAppendTime and lag in seconds differ with the leader, and tokens and"
            " certificates are refused early or accepted late",
            "synchronise the machines by NTP or PTP: chronyc tracking",
        )
        return
    here_ms = max(map(abs, ahead.values()))
    if here_ms > thresholds.clock_ms + error_ms:
        yield Diagnosis(
            "warning",
            "clocks-apart",
            f"this machine and {last}",
            f"their clocks are {span(here_ms)} apart",
            "records from here have wrong timestamps; more than message.timestamp.after.max.ms"
            " ahead, they are refused",
            "synchronise the machines by NTP or PTP: chronyc tracking",
        )


def _levels(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for each in log.brokers:
        verbose = sorted(name for name, level in each.levels.items() if level in VERBOSE)
        # A level counts for all loggers below, which are listed with it.
        roots = [n for n in verbose if not any(n.startswith(o + ".") for o in verbose)]
        if "root" in roots:
            roots = ["root"]
        if roots:
            unset = " ".join(f"--unset {name}" for name in roots)
            yield Diagnosis(
                "warning",
                "verbose-loggers",
                each.name,
                f"loggers are at DEBUG or TRACE: {listed(roots)}",
                "the log of the broker grows fast, and writing it takes time from requests",
                log.command(f"configs alter --broker-logger {each.node_id} {unset}"),
            )


def _subscriptions(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for name, settings in sorted(log.subscriptions.items()):
        interval = settings.get("interval.ms") or ""
        where = f"client-metrics {name}"
        if interval.isdecimal() and int(interval) < thresholds.push_interval_ms:
            yield Diagnosis(
                "warning",
                "frequent-pushes",
                where,
                f"clients push their metrics every {interval} ms",
                "clients send and brokers decode that often, which no dashboard shows",
                log.command(f"client-metrics alter --name {name} --interval 60000"),
            )
        if settings.get("metrics") == "":
            yield Diagnosis(
                "warning",
                "empty-subscription",
                where,
                "the subscription names no metric",
                "clients that match it push nothing, and their dashboards stay empty",
                log.command(f"client-metrics alter --name {name} --metrics '*'")
                + ", or "
                + log.command(f"client-metrics delete --name {name}"),
            )


def _offline(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    yield from _partitions_where(
        log,
        lambda _, each: each.leader == NO_NODE,
        lambda where: Diagnosis(
            "critical",
            "offline-partitions",
            where,
            "no replica leads",
            "nothing can be written there or read from there",
            "start the brokers that were last in sync: " + log.command("cluster status"),
        ),
    )


def _under_min_isr(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    yield from _partitions_where(
        log,
        lambda topic, each: each.leader != NO_NODE and len(each.in_sync) < _min_insync(topic, each),
        lambda where: Diagnosis(
            "critical",
            "under-min-isr",
            where,
            "fewer replicas are in sync than min.insync.replicas",
            "writes with acks=all are refused",
            "start the brokers of the missing replicas: " + log.command("cluster status"),
        ),
    )


def _under_replicated(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    # During a move, the new replicas are expected to be behind.
    if log.moves:
        return
    yield from _partitions_where(
        log,
        lambda topic, each: _min_insync(topic, each) <= len(each.in_sync) < len(each.replicas),
        lambda where: Diagnosis(
            "warning",
            "under-replicated",
            where,
            "not all replicas are in sync",
            "one failure more may refuse writes, or lose the last complete copy",
            "start or relieve the brokers of the missing replicas: "
            + log.command("cluster status"),
        ),
    )


def _min_insync(topic: TopicView, partition: PartitionDescription) -> int:
    """Return how many replicas must be in sync for acks=all."""
    copies = len(partition.replicas)
    given = topic.number("min.insync.replicas")
    if not given:
        # Streamlog derives 0 from the number of replicas.
        return 1 if given is None or copies < REDUNDANT else 2
    # More than there are: on Kafka, no replica that comes back helps; see `_min_isr`.
    return min(given, copies)


def _partitions_where(
    log: LogView,
    wanted: Callable[[TopicView, PartitionDescription], bool],
    diagnose: Callable[[str], Diagnosis],
) -> Iterator[Diagnosis]:
    found = [
        f"{topic.name}-{each.partition}"
        for _, topic in sorted(log.topics.items())
        for each in topic.partitions
        if each.replicas and wanted(topic, each)
    ]
    if found:
        yield diagnose(listed(found))


def _copies(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if len(log.brokers) < 2:  # noqa: PLR2004 - there is no second broker for a copy
        return
    lone = [t.name for t in _sorted(log) if any(len(each.replicas) == 1 for each in t.partitions)]
    if lone:
        yield Diagnosis(
            "critical",
            "one-replica",
            listed(lone),
            "partitions have one replica",
            "while its broker is down they are offline, and with its disk their records are lost",
            "add replicas: " + log.command(f"cluster reassign '{lone[0]}-*=BROKER,BROKER,BROKER'"),
        )


def _min_isr(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield topics with too few required replicas, with all of them, and with more."""
    weak, tight, never = list[str](), list[str](), list[str]()
    for topic in _sorted(log):
        given = topic.number("min.insync.replicas")
        copies = min((len(each.replicas) for each in topic.partitions), default=1)
        if given == 1 and copies >= REDUNDANT:
            weak.append(topic.name)
        elif given is not None and given > copies and not log.is_streamlog:
            never.append(topic.name)
        elif given is not None and copies > 1 and given >= copies:
            tight.append(topic.name)
    if weak:
        yield Diagnosis(
            "warning",
            "min-isr-1",
            listed(weak),
            "min.insync.replicas is 1 with three replicas or more",
            "a write with acks=all may be on one disk only, and is lost with it",
            log.alter_topic(weak[0], "min.insync.replicas", 2),
        )
    if tight:
        yield Diagnosis(
            "warning",
            "min-isr-all",
            listed(tight),
            "min.insync.replicas is the number of replicas, or larger",
            "writes with acks=all stop when any broker is down or restarted",
            log.alter_topic(tight[0], "min.insync.replicas", "N-1"),
        )
    if never:
        yield Diagnosis(
            "critical",
            "min-isr-above-replicas",
            listed(never),
            "min.insync.replicas is larger than the number of replicas",
            "every write with acks=all is refused",
            log.alter_topic(never[0], "min.insync.replicas", 1)
            + ", or add replicas: "
            + log.command(f"cluster reassign '{never[0]}-*=BROKER,BROKER,BROKER'"),
        )


def _unclean(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    unclean = [
        topic.name
        for topic in _sorted(log)
        if topic.settings.get("unclean.leader.election.enable") == "true"
    ]
    if unclean:
        yield Diagnosis(
            "critical",
            "unclean-election",
            listed(unclean),
            "unclean.leader.election.enable is true",
            "a replica that lacks acknowledged records may become leader, and they are lost",
            log.alter_topic(unclean[0], "unclean.leader.election.enable", "false"),
        )


def _broker_settings(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    """Yield settings of brokers that lose records, or leave topics uncleaned."""
    alive = len(log.brokers)
    single = [e for e in log.brokers if e.settings.get("default.replication.factor") == "1"]
    if single and alive >= REDUNDANT:
        yield Diagnosis(
            "warning",
            "default-one-replica",
            listed(each.name for each in single),
            "default.replication.factor is 1",
            "new topics, also those that apps create for their state, have no second copy",
            log.command("configs alter --broker all --set default.replication.factor=3"),
        )
    lazy = [each for each in log.brokers if each.settings.get("flush") == "os"]
    if lazy and alive == 1:
        yield Diagnosis(
            "warning",
            "flush-os",
            lazy[0].name,
            "flush=os on the only broker",
            "a power cut loses records that were acknowledged",
            "set flush=always and restart it",
        )
    dirty = [each for each in log.brokers if each.settings.get("log.cleaner.enable") == "false"]
    if dirty:
        yield Diagnosis(
            "warning",
            "cleaner-off",
            listed(each.name for each in dirty),
            "log.cleaner.enable is false",
            "compacted topics, changelogs and committed offsets grow without limit",
            log.command("configs alter --broker all --set log.cleaner.enable=true"),
        )


def _throttles(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if log.moves:
        return
    left = [
        topic.name
        for topic in _sorted(log)
        if any(topic.settings.get(f"{each}.replicas") for each in THROTTLED)
    ]
    if left:
        yield Diagnosis(
            "warning",
            "throttle-left",
            listed(left),
            "replication is still throttled, and no move is in progress",
            "a replica that falls behind may never catch up, and leaves the in-sync set",
            log.command("cluster reassign --verify"),
        )


def _large(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for topic in _sorted(log):
        large = {n: held for n, held in topic.sizes.items() if held > thresholds.partition_bytes}
        if not large:
            continue
        wanted = -(-sum(topic.sizes.values()) // thresholds.partition_bytes)
        yield Diagnosis(
            "warning",
            "large-partitions",
            listed(f"{topic.name}-{number}" for number in sorted(large)),
            f"up to {size(max(large.values()))} in a partition, more than"
            f" {size(thresholds.partition_bytes)}",
            "moves, restarts and restores of the partition take long",
            "shorten retention.ms or retention.bytes, or spread the topic: "
            + log.command(f"topics alter {topic.name} --partitions {wanted}")
            + " (keys map to other partitions then: docs/keys-and-partitions.md)",
        )


def _many(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    held = Counter(
        node for topic in log.topics.values() for each in topic.partitions for node in each.replicas
    )
    crowded = {node: count for node, count in held.items() if count > thresholds.broker_replicas}
    if crowded or held.total() > thresholds.cluster_replicas:
        names = [f"broker {node} ({count})" for node, count in sorted(crowded.items())]
        yield Diagnosis(
            "warning",
            "many-replicas",
            listed(names) or "cluster",
            f"more than {thresholds.broker_replicas} replicas on a broker, or"
            f" {thresholds.cluster_replicas} in the cluster ({held.total()})",
            "elections and restarts take long, and every replica costs open files and memory",
            "delete topics, or add a broker: " + log.command("cluster plan --add BROKER --execute"),
        )


def _skew(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for topic in _sorted(log):
        if topic.is_internal or len(topic.partitions) < 2:  # noqa: PLR2004 - nothing to compare
            continue
        watched = {n: rate * log.watched_s for n, rate in topic.rates.items()}
        hot = (
            _hot(watched, thresholds.skew_records, thresholds, "the records written now")
            or _hot(topic.records, thresholds.skew_records, thresholds, "the topic's records")
            or _hot(topic.sizes, thresholds.skew_bytes, thresholds, "the topic's bytes")
        )
        if hot:
            number, share, what = hot
            yield Diagnosis(
                "warning",
                "skewed-partitions",
                f"{topic.name}-{number}",
                f"the partition has {share:.0%} of {what}, in a topic with"
                f" {quantity(len(topic.partitions), 'partition')}",
                "its reader and its leader limit the whole topic, whatever is added elsewhere",
                "find out how keys are spread: "
                + log.command(f"topics check {topic.name}")
                + "; give hot keys a finer key, or records without order no key",
            )


def _hot(
    amounts: Mapping[int, float], least: float, thresholds: Thresholds, what: str
) -> tuple[int, float, str] | None:
    total = sum(amounts.values())
    if total < least or len(amounts) < 2:  # noqa: PLR2004 - nothing to compare
        return None
    number = max(amounts, key=amounts.__getitem__)
    share = amounts[number] / total
    # Of two partitions, one has twice the mean at most: then its share counts.
    allowed = min(thresholds.skew / len(amounts), SKEW_SHARE_MAX)
    return (number, share, what) if share > allowed else None


def _leaders(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    all_of = [each for topic in log.topics.values() for each in topic.partitions]
    moved = [
        f"{each.topic}-{each.partition}"
        for each in all_of
        if each.replicas and each.leader != each.replicas[0] and each.replicas[0] in each.in_sync
    ]
    if len(moved) > thresholds.leader_imbalance * len(all_of):
        yield Diagnosis(
            "warning",
            "leader-imbalance",
            listed(moved),
            f"{len(moved)} of {len(all_of)} partitions are not led by their preferred replica",
            "some brokers do the work of others",
            log.command("cluster elect"),
        )


def _balance(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    if len(log.brokers) < 2 or log.moves:  # noqa: PLR2004 - nothing to compare
        return
    held = {each.node_id: 0 for each in log.brokers if not each.is_cordoned}
    for disk in log.disks:
        if disk.node_id in held:
            held[disk.node_id] += disk.used_bytes
    if not held or max(held.values()) < BALANCE_BYTES_MIN:
        return
    fullest = max(held, key=held.__getitem__)
    if held[fullest] > BALANCE_RATIO * mean(held.values()):
        yield Diagnosis(
            "warning",
            "unbalanced-brokers",
            f"broker {fullest}",
            f"it holds {size(held[fullest])}, the mean is {size(mean(held.values()))}",
            "its disk and its network are full first",
            log.command("cluster plan --balance --execute"),
        )


def _disks(log: LogView, thresholds: Thresholds) -> Iterator[Diagnosis]:
    for disk in log.disks:
        if disk.is_failed:
            yield Diagnosis(
                "critical",
                "failed-disk",
                disk.name,
                "the broker can't use the directory",
                "its partitions have a replica less",
                "replace the disk (docs/operations.md, Several disks), or "
                + log.command(f"cluster plan --drain {disk.node_id} --execute"),
            )
        elif disk.total_bytes and disk.usable_bytes is not None:
            yield from _space(log, disk, disk.usable_bytes, disk.total_bytes, thresholds)


def _space(
    log: LogView, disk: DiskView, usable: int, total: int, thresholds: Thresholds
) -> Iterator[Diagnosis]:
    remedy = (
        "shorten retention.ms or retention.bytes of its largest topics, enlarge the disk, or "
        + log.command("cluster plan --balance --execute")
    )
    outlook = "at the end the broker accepts no writes to this disk"
    if usable < thresholds.disk_free_share * total:
        yield Diagnosis(
            "critical",
            "disk-full",
            disk.name,
            f"{size(usable)} of {size(total)} are free ({usable / total:.0%})",
            outlook,
            remedy,
        )
    days = days_left(log, disk, usable) if log.watched_s >= thresholds.disk_watch_s else None
    if days is not None and days < thresholds.disk_days:
        yield Diagnosis(
            "warning",
            "disk-days",
            disk.name,
            f"it is full in {span(days * DAY_MS)} at the rate of the last {log.watched_s:.0f} s",
            outlook,
            remedy,
        )


def days_left(log: LogView, disk: DiskView, usable: float) -> float | None:
    """Return in how many days a disk is full at the observed rates; None if it never is.

    A partition with `retention.bytes` stops growing there.
    """
    rates: list[tuple[float, float]] = []
    for partition, rate in disk.growth.items():
        if rate > 0:
            rates.append((_room(log.topics, disk, partition) / rate, rate))
    # Growth slows down whenever a partition is as large as it may be.
    passed_s, growing = 0.0, sum(rate for _, rate in rates)
    for until_s, rate in sorted(rates):
        grown = growing * (until_s - passed_s)
        if grown >= usable:
            return (passed_s + usable / growing) * 1000 / DAY_MS
        usable, passed_s, growing = usable - grown, until_s, growing - rate
    return None


def _mirrors(log: LogView, _: Thresholds) -> Iterator[Diagnosis]:
    for each in log.mirrors:
        if not each.is_stopped:
            continue
        yield Diagnosis(
            "critical",
            "mirror-stopped",
            f"mirror {each.name}",
            f"it copies nothing any more: {each.reason}",
            "a failover loses what the source gets from now on",
            f"{log.command(f'mirror describe {each.link}')}; then docs/runbooks.md, "
            "StreamlogMirrorStopped",
        )


def _room(topics: Mapping[str, TopicView], disk: DiskView, partition: TopicPartition) -> float:
    topic = topics.get(partition.topic)
    kept = None if topic is None else topic.retention_bytes
    if topic is None or kept is None:
        return float("inf")
    # Whole segments are removed, so one more may be there.
    most = kept + (topic.number("segment.bytes") or 0)
    return max(most - disk.sizes.get(partition, 0), 0)


def _sorted(log: LogView) -> Iterable[TopicView]:
    return (log.topics[name] for name in sorted(log.topics))


CLUSTER_RULES: Final[tuple[Rule, ...]] = (
    _controller,
    _quorum,
    _brokers_down,
    _offline,
    _under_min_isr,
    _under_replicated,
    _copies,
    _min_isr,
    _unclean,
    _broker_settings,
    _disks,
    _large,
    _many,
    _skew,
    _leaders,
    _balance,
    _throttles,
    _cordoned,
    _versions,
    _builds,
    _descriptors,
    _clocks,
    _levels,
    _subscriptions,
    _mirrors,
)
