"""`streamlog mirror` with `--to` or `--connect`: mirrors to Apache Kafka, run by a Connect service.

Such a mirror is a connector `KafkaMirror`: its state is that of the connector and its tasks, and
its group has its positions. The commands ask the service by its REST API, and ask the log for its
ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from rich.table import Table as Grid

from streamlog.cli.operate.connectors_command import DEFAULT_CONNECT, ask_connect, connector_path
from streamlog.cli.operate.mirror_promotion import lag_text, number_text
from streamlog.cli.session import Session, with_log
from streamlog.cli.terminal import out, say
from streamlog.clock import SystemClock
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect_service.configured import configured
from streamlog.connect_service.service_files import secrets_of
from streamlog.connectors.kafka.kafka_mirror import KafkaMirror
from streamlog.connectors.kafka.mirror_positions import (
    Compared,
    KnownPosition,
    OnProgress,
    compare_mirror,
    known_positions,
)
from streamlog.connectors.kafka.offset_runs import OffsetRuns
from streamlog.errors import ConfigError, NotAuthorized, UsageError, quantity, some_of
from streamlog.log import Log
from streamlog.record import TopicPartition

Progress: TypeAlias = Callable[[TopicPartition], OnProgress]
"""Returns what hears of the progress in a partition."""

CLASS: Final = "KafkaMirror"
BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
ALIAS, TARGET_ALIAS = "source.cluster.alias", "target.cluster.alias"
TOPICS: Final = "topics"
EXCLUDE: Final = "topics.exclude"
PATTERNS: Final = (TOPICS, EXCLUDE)
"""Settings of `create` that become one regular expression of the connector."""
POLICY: Final = "cleanup.policy"
CLIENT_ID: Final = "streamlog-cli"
ONE_RECORD_BYTES: Final = 64 * 1024
"""The bytes to fetch for the time of a first record; a broker sends a larger record whole."""
LEFT_OUT: Final = (
    r"mm2.*\.internal,.*\.checkpoints\.internal,.*\.replica,(.*\.)?heartbeats,"
    r"connect-(configs|offsets|status)"
)
"""Topics of mirrors and of Connect services, which would lead a mirror in circles."""
REGEX: Final = "topics.regex"
_OUR_REGEX: Final = re.compile(r"\(\?!\(\?:(?P<left_out>.*)\)\$\)\(\?:(?P<topics>.*)\)")
KEPT: Final = ("connector.class", ALIAS, "name")
"""Settings that can't be altered: with another value, it would be another mirror."""
NOT_MIRRORED: Final = KnownPosition(0, OffsetRuns())
"""What the target knows of a partition before its first record: the table shows an end at 0."""
LOOKED_FOR_S: Final = 5
"""How long the command looks for the oldest records that the target lacks."""
GROUP: Final = "connect-{}"
"""The group of a sink in a Connect service."""


class MirrorTaskState(msgspec.Struct, frozen=True):
    """A task as the service has it."""

    task: int
    state: str
    worker: str
    reason: str
    """The last line of what it failed with; empty if it runs."""


class MirroredPartition(msgspec.Struct, frozen=True):
    """How far a mirror is in a partition."""

    topic: str
    partition: int
    offset: int
    """Where it continues."""
    end: int
    """The end of the log, up to the first open transaction."""
    lag_records: int
    lag_bytes: int | None
    """An estimate by the mean size of the partition's records; None if that is not known."""
    lag_ms: int | None
    """The age of the oldest record that the target lacks, by its timestamp; None if unknown."""


class KafkaMirrorState(msgspec.Struct, frozen=True):
    """A mirror to Apache Kafka."""

    mirror: str
    to: str
    topics: str
    """The pattern of its topics."""
    alias: str
    state: str
    tasks: list[MirrorTaskState]
    partitions: list[MirroredPartition]
    settings: dict[str, str]

    @property
    def lag_records(self) -> int:
        """The records that the target does not have yet."""
        return sum(each.lag_records for each in self.partitions)

    @property
    def lag_bytes(self) -> int | None:
        """The bytes of these records; None if no partition's are known."""
        known = [each.lag_bytes for each in self.partitions if each.lag_bytes is not None]
        return sum(known) if known else None

    @property
    def lag_ms(self) -> int | None:
        """The age of the oldest of these records; None if none is known."""
        known = [each.lag_ms for each in self.partitions if each.lag_ms is not None]
        return max(known, default=None)

    @property
    def reason(self) -> str:
        """Why a task does not run; empty if all do."""
        return next((each.reason for each in self.tasks if each.reason), "")


class WantedMirror(msgspec.Struct, frozen=True):
    """A mirror that is to be created, to a target that was reached."""

    name: str
    cluster: str
    """The id of the target."""
    settings: dict[str, str]
    """What was given, and how the target is reached."""
    topics: str
    groups: str | None


def revealed(name: str, value: str) -> str:
    """Return the value of a setting without references to secrets, as a service's workers do.

    Raises:
        ConfigError: a secret can't be read on this machine.
    """
    try:
        # The command may read what its user may read; only workers are bound to directories.
        return secrets_of([Path("/")])(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error


def create(
    session: Session, log: str | None, wanted: WantedMirror, url: str | None, *, as_json: bool
) -> None:
    """Create a mirror.

    Raises:
        UsageError: the service works for another cluster, the target is this cluster, or no topic
            matches.
        ConnectAnswer: the service refuses the settings, or has a connector of this name.
    """
    service = url or DEFAULT_CONNECT

    async def look(opened: Log) -> tuple[str, list[str]]:
        return opened.cluster_id, [each.name for each in await opened.admin().list_topics()]

    cluster, names = with_log(session, log, look)
    if cluster == wanted.cluster:
        raise UsageError(f"--to leads to this cluster itself, {cluster}: name another one")
    asked = ask_connect(service, "GET", "/").get("kafka_cluster_id")
    if asked != cluster:
        raise UsageError(
            f"the Connect service at {service} works for cluster {asked}, and the source is"
            f" {cluster}: name a service of that one by --connect, or the source by --source"
        )
    settings = configuration(wanted)
    mirrored = [each for each in names if re.fullmatch(settings[REGEX], each)]
    if not mirrored:
        known = some_of(names) if names else "none"
        raise UsageError(
            f"no topic of this cluster matches {wanted.topics!r}; its topics: {known}. A pattern"
            " has to match the whole name"
        )
    ask_connect(service, "POST", "/connectors", {"name": wanted.name, "config": settings})
    if as_json:
        say(json.dumps({"mirror": wanted.name, "target": wanted.cluster, "topics": mirrored}))
        return
    say(
        f"{wanted.name} mirrors {quantity(len(mirrored), 'topic')} to cluster {wanted.cluster}:"
        f" {some_of(mirrored)}"
    )
    say(f"how far they are: streamlog mirror describe {wanted.name} --connect {service}")


def configuration(wanted: WantedMirror) -> dict[str, str]:
    """Return the configuration of the connector; given settings override the others."""
    given = {"connector.class": CLASS, ALIAS: wanted.name, **wanted.settings}
    given |= {f"{side}.converter": BYTES for side in ("key", "value")}
    left_out = _left_out(given, given.pop(EXCLUDE, LEFT_OUT))
    given[REGEX] = _regex(_alternatives(wanted.topics), left_out)
    if wanted.groups is not None:
        given |= {"groups": wanted.groups, "sync.group.offsets.enabled": "true"}
    return given


def _left_out(settings: Mapping[str, str], patterns: str) -> str:
    if settings.get("replication.policy") != "identity":
        # Topics that came from the target must not go back there under another name.
        patterns += rf",{re.escape(settings.get(TARGET_ALIAS, 'target'))}\..*"
    return _alternatives(patterns)


def _regex(topics: str, left_out: str) -> str:
    return f"(?!(?:{left_out})$)(?:{topics})"


def _alternatives(patterns: str) -> str:
    return "|".join(each for part in patterns.split(",") if (each := part.strip()))


def show_list(session: Session, log: str | None, url: str, *, as_json: bool) -> None:
    """Print all mirrors to Apache Kafka of a service."""
    found = _states(session, log, url)
    if as_json:
        say(json.dumps([_json(each) for each in found]))
        return
    grid = Grid("mirror", "to", "topics", "state", "tasks", "records", "bytes", "seconds", "reason")
    for each in found:
        row = (each.mirror, each.to, each.topics, each.state, str(len(each.tasks)))
        grid.add_row(*row, *_lag(each), each.reason)
    out().print(grid)


def show(session: Session, log: str | None, url: str, name: str | None, *, as_json: bool) -> None:
    """Print mirrors with their settings, tasks, and how far each partition is."""
    found = _states(session, log, url, name)
    if as_json:
        say(json.dumps({"mirrors": [_json(each) for each in found]}))
        return
    for each in found:
        say(f"mirror {each.mirror} to {each.to}, {each.state}")
        for setting, value in sorted(each.settings.items()):
            say(f"  {setting}={value}")
        for task in each.tasks:
            why = f": {task.reason}" if task.reason else ""
            say(f"  task {task.task} on {task.worker}, {task.state}{why}")
        grid = Grid("partition", "offset", "end", "records", "bytes", "seconds")
        for at in each.partitions:
            where = f"{at.topic}-{at.partition}"
            grid.add_row(where, str(at.offset), str(at.end), *_lag(at))
        out().print(grid)


def _lag(of: KafkaMirrorState | MirroredPartition) -> tuple[str, str, str]:
    """Return the cells of a lag, as tables of links show it."""
    age = "?" if of.lag_ms is None else lag_text(of.lag_ms)
    return number_text(of.lag_records), number_text(of.lag_bytes), age


def alter(url: str, name: str, changes: Mapping[str, str | None], *, as_json: bool) -> None:
    """Change settings of a mirror, all of them or none; None returns one to its default.

    Raises:
        UsageError: the service has no mirror of this name, or a setting can't be altered.
        ConnectAnswer: the service refuses a setting.
    """
    config = _named(_mirrors(url), name, url)[name]["info"]["config"]
    settings = altered(config, changes)
    # Kafka Connect would ignore a setting that it does not know.
    path = f"/connector-plugins/{CLASS}/config/validate"
    checked = ask_connect(url, "PUT", path, settings)
    faults = [one for each in checked["configs"] for one in each["value"]["errors"]]
    if faults:
        raise UsageError(f"mirror {name} stays as it is: {'; '.join(faults)}")
    ask_connect(url, "PUT", f"{connector_path(name)}/config", settings)
    done = {"altered": name, "settings": {**changes}}
    say(json.dumps(done) if as_json else f"mirror {name} is altered")


def altered(config: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return a mirror's configuration with changes; `topics` and `topics.exclude` are patterns.

    Raises:
        UsageError: a setting can't be altered, or `create` has not written the mirror's pattern.
    """
    if kept := [each for each in KEPT if each in changes]:
        raise UsageError(f"{kept[0]} can't be altered: create a mirror with another name")
    settings = {**config}
    for each, text in changes.items():
        settings.pop(each, None)
        if text is not None and each not in PATTERNS:
            settings[each] = text
    if not changes.keys() & {*PATTERNS}:
        return settings
    known = _OUR_REGEX.fullmatch(config.get(REGEX, ""))
    if known is None:
        raise UsageError(
            f"{REGEX}={config.get(REGEX, '')} was not written by `mirror create`: replace it by"
            f" --set {REGEX}=PATTERN"
        )
    topics, left_out = known["topics"], known["left_out"]
    if TOPICS in changes:
        topics = _alternatives(changes[TOPICS] or "")
    if EXCLUDE in changes:
        left_out = _left_out(settings, changes[EXCLUDE] or LEFT_OUT)
    if not topics:
        raise UsageError("topics can't be unset: a mirror without topics mirrors nothing")
    return settings | {REGEX: _regex(topics, left_out)}


async def compared(
    log: Log, url: str, link: str | None, topics: Sequence[str], on_progress: Progress
) -> list[tuple[TopicPartition, Compared]]:
    """Compare mirrors with this cluster, up to what they have stored in their target.

    Raises:
        UsageError: the service has no such mirror, or it has none of the topics.
        ConfigError: a secret can't be read here.
    """
    found = _mirrors(url)
    if link is not None:
        found = _named(found, link, url)
    outcomes = []
    for name, said in found.items():
        offsets = await log.admin().group_offsets(GROUP.format(name))
        wanted = [at for at in sorted(offsets) if not topics or at.topic in topics]
        outcomes += await _compared(log, name, said["info"]["config"], wanted, on_progress)
    if not outcomes:
        raise UsageError("there is no mirrored partition to compare")
    return outcomes


async def _compared(
    log: Log,
    name: str,
    config: Mapping[str, str],
    wanted: Sequence[TopicPartition],
    on_progress: Progress,
) -> list[tuple[TopicPartition, Compared]]:
    connector = configured(name, config, {}, partial(revealed, name))
    sink = connector.sink if isinstance(connector, SinkConnector) else None
    if not isinstance(sink, KafkaMirror):
        raise UsageError(f"{name} is no mirror")
    outcomes = []
    async with sink.login.opened(CLIENT_ID) as target:
        known = await known_positions(target, sink.names.positions, sink.id_of(name), wanted)
        for at in wanted:
            policy = (await log.admin().describe_configs(at.topic))[POLICY].value or ""
            there = TopicPartition(sink.names.remote(at.topic), at.partition)
            outcome = await compare_mirror(
                (log, at),
                (target, there),
                known.get(at, NOT_MIRRORED),
                is_compacted="compact" in policy,
                on_progress=on_progress(at),
            )
            outcomes.append((at, outcome))
    return outcomes


def change(url: str, name: str, verb: str, *, as_json: bool) -> None:
    """Pause, resume or delete a mirror.

    Raises:
        UsageError: the service has no mirror of this name.
    """
    # A connector of another kind must not be paused, or deleted, as a mirror by mistake.
    _named(_mirrors(url), name, url)
    path = connector_path(name)
    if verb == "delete":
        ask_connect(url, "DELETE", path)
    else:
        ask_connect(url, "PUT", f"{path}/{verb}")
    done = {"pause": "paused", "resume": "resumed", "delete": "deleted"}[verb]
    say(json.dumps({done: name}) if as_json else f"mirror {name} is {done}")


def mirror_named(topics: Sequence[str] | None, link: str | None) -> str:
    """Return the mirror that a command with `--connect` names.

    Raises:
        UsageError: it names topics, or nothing.
    """
    if topics or link is None:
        raise UsageError("with --connect, a mirror is paused and resumed as a whole: --link NAME")
    return link


def _mirrors(url: str) -> dict[str, Any]:
    found = ask_connect(url, "GET", "/connectors?expand=status&expand=info")
    return {
        name: each
        for name, each in sorted(found.items())
        if each["info"]["config"].get("connector.class", "").rpartition(".")[2] == CLASS
    }


def _named(found: Mapping[str, Any], name: str, url: str) -> dict[str, Any]:
    if name not in found:
        known = f"the mirrors are {', '.join(found)}" if found else "there are none"
        raise UsageError(f"the Connect service at {url} has no mirror {name!r}: {known}")
    return {name: found[name]}


def _states(
    session: Session, log: str | None, url: str, name: str | None = None
) -> list[KafkaMirrorState]:
    found = _mirrors(url)
    if name is not None:
        found = _named(found, name, url)

    async def partitions(opened: Log) -> dict[str, list[MirroredPartition]]:
        return {each: await _partitions(opened, GROUP.format(each)) for each in found}

    far = with_log(session, log, partitions) if found else {}
    return [_state(each, said, far[each]) for each, said in found.items()]


async def _partitions(log: Log, group: str) -> list[MirroredPartition]:
    offsets = await log.admin().group_offsets(group)
    async with log.consumer(isolation_level="read_committed") as consumer:
        begins = await consumer.begin_offsets([*offsets])
        ends = await consumer.end_offsets([*offsets])
    lacking = {at: ends[at] - offset for at, offset in offsets.items() if ends[at] > offset}
    sizes = await _sizes(log, lacking)
    times_ms = await _oldest_ms(log, {at: offsets[at] for at in lacking})
    now_ms = SystemClock().wall_ms()
    found = []
    for at, offset in sorted(offsets.items()):
        lag, size, time_ms = lacking.get(at, 0), sizes.get(at), times_ms.get(at)
        lag_bytes = None if size is None else size * lag // (ends[at] - begins[at])
        lag_ms = None if time_ms is None else max(now_ms - time_ms, 0)
        if not lag:
            lag_bytes = lag_ms = 0
        found.append(MirroredPartition(*at, offset, ends[at], lag, lag_bytes, lag_ms))
    return found


async def _sizes(log: Log, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the bytes of partitions; nothing if the user may not ask for them."""
    if not partitions:
        return {}
    try:
        folders = await log.admin().describe_log_dirs(partitions)
    except NotAuthorized:
        return {}
    found: dict[TopicPartition, int] = {}
    # Replicas that are behind have less; the leader's has all.
    for at, size in (pair for each in folders for pair in each.sizes.items()):
        found[at] = max(found.get(at, 0), size)
    return found


async def _oldest_ms(log: Log, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the times of the first records at or behind offsets, if they arrive in time."""
    found: dict[TopicPartition, int] = {}
    left = {**offsets}
    clock = SystemClock()
    until_ms = clock.now_ms() + 1000 * LOOKED_FOR_S
    settings = log.consumer(
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        max_partition_fetch_bytes=ONE_RECORD_BYTES,
    )
    async with settings as consumer:
        consumer.assign(left)
        for at, offset in left.items():
            consumer.seek(at, offset)
        while left and clock.now_ms() < until_ms:
            for at, columns in (await consumer.poll_columns(timeout_ms=100)).items():
                found[at] = columns.timestamps[0]
                left.pop(at, None)
            # Those that have answered are read no further.
            consumer.assign(left)
    return found


def _state(name: str, said: Mapping[str, Any], far: list[MirroredPartition]) -> KafkaMirrorState:
    config, status = said["info"]["config"], said.get("status", {})
    tasks = [
        MirrorTaskState(
            task["id"], task["state"], task.get("worker_id", ""), _last_line(task.get("trace", ""))
        )
        for task in status.get("tasks", ())
    ]
    states = {task.state for task in tasks}
    state = status.get("connector", {}).get("state", "UNASSIGNED")
    return KafkaMirrorState(
        mirror=name,
        to=config.get("bootstrap.servers", ""),
        topics=config.get(REGEX, config.get(TOPICS, "")),
        alias=config.get(ALIAS, "source"),
        # A connector runs although its tasks have failed.
        state="FAILED" if "FAILED" in states else state,
        tasks=tasks,
        partitions=far,
        settings=config,
    )


def _last_line(trace: str) -> str:
    return trace.strip().rpartition("\n")[2]


def _json(state: KafkaMirrorState) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(state)
    lags = {"lag_records": state.lag_records, "lag_bytes": state.lag_bytes, "lag_ms": state.lag_ms}
    return built | lags | {"reason": state.reason}
