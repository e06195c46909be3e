"""Log tools: what an assistant sees of a log: findings, topics, records, groups, mirrors, errors.

They ask what `streamlog doctor` and the console ask. Rule of the module: nothing is changed here.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from streamlog import errors
from streamlog.adviser import AppView, LogView, advise
from streamlog.adviser.log_look import LogLook
from streamlog.cli.assistant.assistant_desk import AssistantDesk, tool
from streamlog.cli.assistant.bounded_answers import NEXT, Answer, Arguments, listed
from streamlog.cli.cluster_profiles import nearest
from streamlog.cli.operate.log_doctor import look_at_app_of
from streamlog.cli.operate.top_screen import figures
from streamlog.console.cluster_looks import find_mirror, look_at_mirrors
from streamlog.console.group_looks import look_at_group
from streamlog.console.log_sight import LogSight
from streamlog.console.message_reader import SHOWN, find
from streamlog.console.page_changes import look_at_settings
from streamlog.console.pages.message_pages import Found, asked_of
from streamlog.console.pages.page_parts import moment
from streamlog.console.schema_desk import SchemaDesk
from streamlog.console.shown_records import ShownBytes, ShownRecord
from streamlog.errors import StreamlogError, UsageError
from streamlog.generate.alerts import DOCS, Alert, AlertLimits, alert_groups
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.record import TopicPartition

ROWS_MAX: Final = 200
ROWS_DEFAULT: Final = 50
WATCH_MAX_S: Final = 10.0
SAMPLE_RECORDS: Final = 500
VALUE_DEFAULT: Final = 1_000
VALUE_MAX: Final = 20_000
NAME_MAX: Final = 1_000
HEADER_SHOWN: Final = 200
"""Characters of a header's value."""

_INDENT: Final = re.compile(r"\n *")

Limit = Annotated[int, Meta(ge=1, le=ROWS_MAX, description="Rows of the answer, at most.")]
Contains = Annotated[
    str, Meta(max_length=NAME_MAX, description="Only names that contain this text; empty: all.")
]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_MAX)]
Characters = Annotated[
    int, Meta(ge=1, le=VALUE_MAX, description="Characters of each key and value, at most.")
]


class Watched(Arguments, frozen=True):
    """For how long to look."""

    watch_seconds: Annotated[
        float,
        Meta(ge=0, le=WATCH_MAX_S, description="How long to observe; rates are differences."),
    ] = 2.0


class Filtered(Arguments, frozen=True):
    """Which rows of a list to show."""

    name_contains: Contains = ""
    limit: Limit = ROWS_DEFAULT


# ---- what is wrong ----


async def overview(desk: AssistantDesk, asked: Watched) -> Answer:
    """Show what is wrong with the log now, the worst first, with the commands that mend it.

    Then its brokers, and how many topics and groups it has. Begin here.
    """
    async with desk.log() as log:
        view, of_app = await _look(desk, log, asked.watch_seconds)
        found = figures(_sight(view, log, of_app))
    return {
        **{name: found[name] for name in ("healthy", "findings", "cluster", "controller")},
        "brokers": found["brokers"],
        "topics": len(view.topics),
        "groups": len(view.groups),
        "not_seen": found["unseen"],
        "watched_seconds": round(view.watched_s, 3),
    }


async def _look(desk: AssistantDesk, log: Log, watch_s: float) -> tuple[LogView, AppView | None]:
    view = await LogLook(log, url=desk.log_url, clock=desk.clock).view(watch_s)
    app = desk.session.app
    if app is None:
        return view, None
    of = (app, app.program().topology)
    return view, await look_at_app_of(of, log, view, module=desk.module, sample=SAMPLE_RECORDS)


def _sight(view: LogView, log: Log, of_app: AppView | None = None) -> LogSight:
    found = tuple(advise(view, of_app))
    return LogSight(view=view, findings=found, cluster_id=log.cluster_id)


# ---- topics and groups ----


async def list_topics(desk: AssistantDesk, asked: Filtered) -> Answer:
    """List topics: partitions, records, bytes, and how many lack replicas or a leader."""
    return await _figures(desk, asked, "topics", "topic")


async def list_groups(desk: AssistantDesk, asked: Filtered) -> Answer:
    """List consumer groups with state, members and lag.

    The lag is in records and as the age of the next record (age_ms); lost records were deleted
    before the group read them.
    """
    return await _figures(desk, asked, "groups", "group")


async def _figures(desk: AssistantDesk, asked: Filtered, what: str, key: str) -> Answer:
    async with desk.log() as log:
        # Without an observation: a list is asked for often, and rates are in the overview's time.
        view = await LogLook(log, url=desk.log_url, clock=desk.clock).view(0)
        found = msgspec.convert(figures(_sight(view, log))[what], list[dict[str, object]])
    rows = sorted(
        (each for each in found if asked.name_contains in str(each[key])),
        key=lambda each: str(each[key]),
    )
    return {**listed(what, rows, asked.limit), "not_seen": list(view.unseen)}


class OneTopic(Arguments, frozen=True):
    """A topic."""

    topic: Name


async def describe_topic(desk: AssistantDesk, asked: OneTopic) -> Answer:
    """Show a topic's partitions with leader, replicas and offsets, and its own settings.

    Settings that have their default are left out.
    """
    async with desk.log() as log:
        settings = await look_at_settings(log, asked.topic)
        parts = [
            each for each in await log.admin().describe_partitions() if each.topic == asked.topic
        ]
        # Without a leader, no broker knows the offsets; other partitions still show theirs.
        keys = [TopicPartition(asked.topic, each.partition) for each in parts if each.leader >= 0]
        async with log.consumer() as consumer:
            begins, ends = await consumer.begin_offsets(keys), await consumer.end_offsets(keys)
    rows = [
        {
            "partition": each.partition,
            "leader": each.leader if each.leader >= 0 else None,
            "replicas": each.replicas,
            "in_sync": each.in_sync,
            "begin": begins.get(TopicPartition(asked.topic, each.partition)),
            "end": ends.get(TopicPartition(asked.topic, each.partition)),
        }
        for each in sorted(parts, key=lambda each: each.partition)
    ]
    # A topic has some thirty settings; what differs is what may be wrong.
    own = {each.name: each.value for each in settings.entries if each.source != "default"}
    return {
        "topic": asked.topic,
        "internal": settings.is_internal,
        "settings": own,
        **listed("partitions", rows, ROWS_MAX),
    }


class OneGroup(Arguments, frozen=True):
    """A consumer group."""

    group: Name
    limit: Limit = ROWS_MAX


async def describe_group(desk: AssistantDesk, asked: OneGroup) -> Answer:
    """Show a consumer group: members, and committed offset, end, lag and reader by partition."""
    async with desk.log() as log:
        look = await look_at_group(log, asked.group)
    return {
        "group": look.group_id,
        "state": look.state,
        "kind": look.kind,
        "assignor": look.assignor,
        "coordinator": look.coordinator,
        "members": list(look.members[: asked.limit]),
        **listed("partitions", look.partitions, asked.limit),
    }


# ---- records ----


class AskedMessages(Arguments, frozen=True):
    """Which records to show."""

    topic: Name
    partition: Annotated[int | None, Meta(description="Null: all partitions.")] = None
    begin: Annotated[
        Literal["newest", "oldest", "offset", "time"], Meta(description="Where to begin.")
    ] = "newest"
    at: Annotated[
        str, Meta(max_length=100, description="The offset, or the time as ISO 8601 in UTC.")
    ] = ""
    key: Annotated[str, Meta(max_length=NAME_MAX, description="Only records with this key.")] = ""
    filter: Annotated[
        str,
        Meta(
            max_length=NAME_MAX,
            description='Such as: value.total > 100 and headers.source == "web"',
        ),
    ] = ""
    read_as: Annotated[
        Literal["auto", "json", "text", "hex"],
        Meta(description="auto also reads what is framed by a schema of the registry."),
    ] = "auto"
    limit: Annotated[int, Meta(ge=1, le=SHOWN)] = 10
    value_characters: Characters = VALUE_DEFAULT


async def read_messages(desk: AssistantDesk, asked: AskedMessages) -> Answer:
    """Read committed records of a topic, also by key or by a filter.

    From the newest backwards, or from the oldest, an offset or a time on. A search ends after
    50,000 records or 5 s, and says so.
    """
    query = {
        "begin": asked.begin,
        "at": asked.at,
        "key": asked.key,
        "q": asked.filter,
        "as": asked.read_as,
        "partition": "" if asked.partition is None else str(asked.partition),
    }
    # Before the log is opened: a mistake in the filter costs nothing.
    wanted = asked_of(query)
    async with desk.log() as log:
        registry = desk.registry_of(log)
        schemas = SchemaDesk(lambda: registry, desk.clock)
        try:
            found = await find(log, asked.topic, wanted, desk.turns, schemas.decoder_of)
        finally:
            schemas.close()
    rows = [record_row(each, asked.value_characters) for each in found.records]
    return {
        "records": rows[: asked.limit],
        "searched": found.scanned,
        **({"stopped": found.stopped} if found.stopped else {}),
        **_following(found, asked),
    }


def _following(found: Found, asked: AskedMessages) -> Answer:
    # The newest come backwards: what follows them was not written yet.
    if asked.begin == "newest":
        return {}
    start = found.following
    # Records of several partitions have no one offset at which they continue.
    if len(found.records) > asked.limit and (asked.partition is not None or start is not None):
        first = found.records[asked.limit]
        start = first.partition, first.offset
    return {} if start is None else {NEXT: {"partition": start[0], "offset": start[1]}}


def record_row(record: ShownRecord, characters: int) -> dict[str, object]:
    """Return a record for an answer, its key and value up to a number of characters each."""
    headers = [[name, _bytes(each, HEADER_SHOWN)] for name, each in record.headers]
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": moment(record.timestamp_ms),
        "key": _bytes(record.key, characters),
        "value": _bytes(record.value, characters),
        **({"headers": headers} if headers else {}),
        **({"more_headers": record.more_headers} if record.more_headers else {}),
    }


def _bytes(shown: ShownBytes, characters: int) -> object:
    if shown.kind == "null":
        return None
    # On one line: the indents are for people, and no string of JSON has a line break.
    text = _INDENT.sub(" ", shown.text) if shown.kind == "JSON" else shown.text
    is_cut = shown.is_cut or len(text) > characters
    return {
        "as": shown.kind,
        "text": text[:characters],
        **({"cut": True, "bytes": shown.size} if is_cut else {}),
        **({} if shown.schema_id is None else {"schema": shown.schema_id}),
    }


# ---- mirrors ----


class AskedMirrors(Filtered, frozen=True):
    """Which mirrors to show."""

    topic: Annotated[
        str, Meta(max_length=NAME_MAX, description="One mirror topic with its partitions.")
    ] = ""


async def mirrors(desk: AssistantDesk, asked: AskedMirrors) -> Answer:
    """Show links to other clusters, and mirror topics with state, reason and lag."""
    async with desk.log() as log:
        look = await look_at_mirrors(log)
    if asked.topic:
        one = find_mirror(look, asked.topic)
        if one is None:
            known = [each.topic for each in look.mirrors]
            raise UsageError(f"there is no mirror {asked.topic!r}{nearest(asked.topic, known)}")
        return {"mirror": one}
    # Partitions only of a mirror that is named: a link may have thousands.
    rows = [
        msgspec.structs.replace(each, partitions=())
        for each in look.mirrors
        if asked.name_contains in each.topic
    ]
    return {"links": list(look.links), **listed("mirrors", rows, asked.limit)}


# ---- errors ----


class Explained(Arguments, frozen=True):
    """What to explain."""

    name: Annotated[
        Name,
        Meta(
            description="A Kafka error (NOT_LEADER_OR_FOLLOWER, or 6), an error of streamlog"
            " (ProcessingError), an exit code (exit 7), or an alert (StreamlogGroupLag)."
        ),
    ]


async def explain_error(_desk: AssistantDesk, asked: Explained) -> Answer:
    """Explain an error by its name or number, an exit code, or an alert.

    What it means, and whether a retry may help; of an alert, what to do first.
    """
    found = explained(asked.name)
    if not found:
        names = [*_codes(), *_classes(), *_alerts()]
        raise UsageError(f"there is no error {asked.name!r}{nearest(asked.name, names)}")
    return {"explanations": found}


def explained(name: str) -> list[dict[str, object]]:
    """Return what is known of an error, an exit code or an alert."""
    wanted = name.strip()
    exit_code = wanted.casefold().removeprefix("exit").strip()
    is_exit = exit_code != wanted.casefold()
    found: list[dict[str, object]] = [
        {
            "kafka_error": each.name,
            "code": each.value,
            "meaning": each.meaning,
            "retriable": each.retriable,
        }
        for each in ErrorCode
        if wanted.upper().replace(" ", "_") == each.name or wanted == str(each.value)
    ]
    found += [
        {
            "error": each.__name__,
            "meaning": " ".join((each.__doc__ or "").split("\n\n")[0].split()),
            "exit_code": each.exit_code,
            "retriable": each.retriable,
            "fatal": each.fatal,
        }
        for each in _classes().values()
        if wanted.casefold() == each.__name__.casefold()
        or (is_exit and exit_code == str(each.exit_code))
    ]
    found += [
        {
            "alert": each.name,
            "severity": each.severity,
            "meaning": each.summary,
            "first": each.action,
            "runbook": f"{DOCS}/runbooks.md#{each.anchor}",
        }
        for each in _alerts().values()
        if wanted.casefold() == each.name.casefold()
    ]
    return found


def _codes() -> list[str]:
    return [each.name for each in ErrorCode]


def _classes() -> dict[str, type[StreamlogError]]:
    return {
        name: each
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, StreamlogError)
    }


def _alerts() -> dict[str, Alert]:
    groups = alert_groups(AlertLimits())
    return {each.name: each for alerts in groups.values() for each in alerts}


LOG_TOOLS: Final = (
    tool(Watched, overview, title="What is wrong"),
    tool(Filtered, list_topics, title="Topics"),
    tool(OneTopic, describe_topic, title="One topic"),
    tool(AskedMessages, read_messages, title="Records of a topic", from_records="records"),
    tool(Filtered, list_groups, title="Consumer groups"),
    tool(OneGroup, describe_group, title="One consumer group"),
    tool(AskedMirrors, mirrors, title="AskedMirrors"),
    tool(Explained, explain_error, title="Explain an error"),
)
