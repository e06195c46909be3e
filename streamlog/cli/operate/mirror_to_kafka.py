"""`streamlog mirror` with `--to` or `--connect`: mirrors to Apache Kafka, run by a Connect service.

Such a mirror is a connector `KafkaMirror`, so its state is that of the connector and its tasks, and
how far it is stands in its group. The commands ask the service by its REST API, and the log for
what is new there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from rich.table import Table as Grid

from streamlog.cli.operate.connectors_command import DEFAULT_CONNECT, ask_connect, connector_path
from streamlog.cli.operate.mirror_promotion import some_of
from streamlog.cli.session import Session, with_log
from streamlog.cli.terminal import out, say
from streamlog.errors import UsageError, quantity
from streamlog.log import Log
from streamlog.record import TopicPartition

CLASS: Final = "KafkaMirror"
BYTES: Final = "org.apache.kafka.connect.converters.ByteArrayConverter"
ALIAS, TARGET_ALIAS = "source.cluster.alias", "target.cluster.alias"
EXCLUDE: Final = "topics.exclude"
LEFT_OUT: Final = (
    r"mm2.*\.internal,.*\.checkpoints\.internal,.*\.replica,(.*\.)?heartbeats,"
    r"connect-(configs|offsets|status)"
)
"""Topics of mirrors and of Connect services, which would lead a mirror in circles."""
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
    settings = _settings(wanted)
    mirrored = [each for each in names if re.fullmatch(settings["topics.regex"], each)]
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


def _settings(wanted: WantedMirror) -> dict[str, str]:
    """Return the configuration of the connector; settings that are given count."""
    given = {"connector.class": CLASS, ALIAS: wanted.name, **wanted.settings}
    given |= {f"{side}.converter": BYTES for side in ("key", "value")}
    left_out = given.pop(EXCLUDE, LEFT_OUT)
    if given.get("replication.policy") != "identity":
        # What has come from the target must not go back there as one topic more.
        left_out += rf",{re.escape(given.get(TARGET_ALIAS, 'target'))}\..*"
    given["topics.regex"] = f"(?!(?:{_alternatives(left_out)})$)(?:{_alternatives(wanted.topics)})"
    if wanted.groups is not None:
        given |= {"groups": wanted.groups, "sync.group.offsets.enabled": "true"}
    return given


def _alternatives(patterns: str) -> str:
    return "|".join(each for part in patterns.split(",") if (each := part.strip()))


def show_list(session: Session, log: str | None, url: str, *, as_json: bool) -> None:
    """Print all mirrors to Apache Kafka of a service."""
    found = _states(session, log, url)
    if as_json:
        say(json.dumps([_json(each) for each in found]))
        return
    grid = Grid("mirror", "to", "topics", "state", "tasks", "lag", "reason")
    for each in found:
        row = (each.mirror, each.to, each.topics, each.state, str(len(each.tasks)))
        grid.add_row(*row, str(each.lag_records), each.reason)
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
        grid = Grid("partition", "offset", "end", "lag")
        for at in each.partitions:
            where = f"{at.topic}-{at.partition}"
            grid.add_row(where, str(at.offset), str(at.end), str(at.lag_records))
        out().print(grid)


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
        ends = await consumer.end_offsets([*offsets])
    return [
        MirroredPartition(*at, offset, ends[at], max(ends[at] - offset, 0))
        for at, offset in sorted(offsets.items())
        if isinstance(at, TopicPartition)
    ]


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
        topics=config.get("topics.regex", config.get("topics", "")),
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
    return built | {"lag_records": state.lag_records, "reason": state.reason}
