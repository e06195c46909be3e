"""App tools: what an assistant can see of apps and connectors: tables, workers, dead letters.

Rows and health come from a worker's HTTP server, connectors from a Connect service, dead letters
from the log. Rule of the module: nothing is changed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final
from urllib.parse import quote, urlencode

from msgspec import Meta

from streamlog.cli.assistant.assistant_desk import AssistantDesk, tool
from streamlog.cli.assistant.bounded_answers import Answer, Arguments, listed
from streamlog.cli.assistant.log_tools import (
    NAME_MAX,
    ROWS_DEFAULT,
    VALUE_DEFAULT,
    Characters,
    Filtered,
    Limit,
    Name,
    record_row,
)
from streamlog.cli.cluster_profiles import nearest
from streamlog.console.app_pages.letter_pages import Letter
from streamlog.console.pages.connector_pages import (
    ConnectorRow,
    find_connector,
    shown_setting,
    without_passwords,
)
from streamlog.console.worker_console.letters import shown_letter
from streamlog.errors import ConnectionLost, UsageError
from streamlog.worker.topics.dead_letters import (
    letter_reader,
    progress,
    read_letters,
    read_unsent,
    unsent,
)

TRACE_SHOWN: Final = 3_000
LETTERS_SHOWN: Final = 100
DLQ_SUFFIX: Final = "-dlq"
COUNTED: Final = {
    "streamlog_records_dropped_total": "dropped",
    "streamlog_node_late_records_total": "late",
}
"""The counters of a worker that say which records have no effect, or came late."""
_SAMPLE: Final = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


# ---- tables ----


class NoArguments(Arguments, frozen=True):
    """Nothing."""


async def list_tables(desk: AssistantDesk, _: NoArguments) -> Answer:
    """List the tables of the app: name, partitions, whether keys have windows."""
    async with desk.asked_worker() as worker:
        return {"tables": _parsed(await worker.ask("GET", "tables"))}


class AskedRows(Arguments, frozen=True):
    """Which rows to show."""

    table: Name
    key: Annotated[
        str, Meta(max_length=NAME_MAX, description="One row, of a table without windows.")
    ] = ""
    prefix: Annotated[str, Meta(max_length=NAME_MAX, description="Only keys that begin so.")] = ""
    at: Annotated[
        str, Meta(max_length=100, description="Only windows that contain this time, ISO 8601.")
    ] = ""
    limit: Limit = ROWS_DEFAULT
    value_characters: Characters = VALUE_DEFAULT


async def read_table(desk: AssistantDesk, asked: AskedRows) -> Answer:
    """Read rows of a table of the app, as committed.

    One by its key, those with a prefix, or the windows that contain a time.
    """
    path = f"tables/{quote(asked.table, safe='')}"
    # With stale rows: while a task moves, an old row with its age is better than an error.
    if asked.key:
        path += f"/{quote(asked.key, safe='')}?stale_ok=true"
    else:
        # One more than is shown, to know whether there are more.
        wanted = {"prefix": asked.prefix, "at": asked.at, "limit": str(asked.limit + 1)}
        given = {name: value for name, value in wanted.items() if value}
        path += f"?{urlencode({**given, 'stale_ok': 'true'})}"
    async with desk.asked_worker() as worker:
        found = [*_lines(await worker.ask("GET", path))]
    # A scan that fails in its middle says so in its last line.
    failed = found[-1] if found and "error" in found[-1] else None
    rows = [
        {name: _cut(value, asked.value_characters) for name, value in each.items()}
        for each in found
        if each is not failed
    ]
    more = len(rows) > asked.limit
    return {
        "rows": rows[: asked.limit],
        "more": more,
        **({} if failed is None else {"stopped": str(failed["error"])}),
    }


def _lines(body: bytes) -> Iterator[Mapping[str, object]]:
    # Each line ends with a break, so that the last piece is empty.
    for line in filter(None, body.split(b"\n")):
        found = _parsed(line)
        if isinstance(found, dict):
            yield found


def _parsed(body: bytes) -> object:
    try:
        found: object = json.loads(body)
    except ValueError as error:
        raise ConnectionLost(f"the worker's answer is no JSON: {body[:200]!r}") from error
    return found


def _cut(value: object, characters: int) -> object:
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= characters else {"cut": True, "text": text[:characters]}


# ---- workers ----


async def worker_health(desk: AssistantDesk, _: NoArguments) -> Answer:
    """Show a worker's state, and the records that its operators dropped or that came late.

    The state says whether it is ready, what it restores, and which tasks make no progress.
    """
    async with desk.asked_worker() as worker:
        live, ready = [_parsed(await worker.ask("GET", each)) for each in ("live", "ready")]
        text = (await worker.ask("GET", "metrics")).decode(errors="replace")
    return {"live": live, "ready": ready, **counted(text)}


def counted(metrics: str) -> dict[str, object]:
    """Return the dropped and late records that a worker's metrics have, with their labels."""
    found: dict[str, list[dict[str, object]]] = {each: [] for each in COUNTED.values()}
    for line in metrics.split("\n"):
        sample = _SAMPLE.fullmatch(line)
        what = None if sample is None else COUNTED.get(sample[1])
        if sample is None or what is None or float(sample[3]) == 0:
            continue
        labels = {name: _plain(value) for name, value in _LABEL.findall(sample[2])}
        found[what].append({**labels, "records": int(float(sample[3]))})
    return {**found}


def _plain(value: str) -> str:
    # Prometheus escapes three characters, as JSON does.
    return str(json.loads(f'"{value}"', strict=False))


# ---- connectors ----


class AskedConnectors(Filtered, frozen=True):
    """Which connectors to show."""

    name: Annotated[
        str, Meta(max_length=NAME_MAX, description="One connector with its configuration.")
    ] = ""


async def connectors(desk: AssistantDesk, asked: AskedConnectors) -> Answer:
    """Show connectors with the states of their tasks, and why tasks have failed.

    Of one that is named, also its configuration, without secrets.
    """
    async with desk.asked_connect() as service:
        found = await service.connectors()
    if not asked.name:
        rows = [_connector(each) for each in found if asked.name_contains in each.name]
        return listed("connectors", rows, asked.limit)
    one = find_connector(found, asked.name)
    if one is None:
        known = [each.name for each in found]
        raise UsageError(f"there is no connector {asked.name!r}{nearest(asked.name, known)}")
    shown = {key: shown_setting(key, value) for key, value in sorted(one.config.items())}
    config = {key: "(hidden)" if value is None else value for key, value in shown.items()}
    return {**_connector(one), "config": config}


def _connector(found: ConnectorRow) -> dict[str, object]:
    return {
        "connector": found.name,
        "type": found.kind,
        "class": found.config.get("connector.class", ""),
        "state": found.state,
        "worker": found.worker,
        **_trace(found.trace),
        "tasks": [
            {"task": each.number, "state": each.state, "worker": each.worker, **_trace(each.trace)}
            for each in found.tasks
        ],
    }


def _trace(trace: str) -> dict[str, str]:
    # Errors of drivers repeat the URL that they were given.
    return {"trace": without_passwords(trace)[:TRACE_SHOWN]} if trace else {}


# ---- dead letters ----


class AskedLetters(Arguments, frozen=True):
    """Which dead letters to show."""

    topic: Annotated[
        str,
        Meta(max_length=NAME_MAX, description="Empty: list the topics that hold dead letters."),
    ] = ""
    include_sent: Annotated[bool, Meta(description="Also those that were sent again already.")] = (
        False
    )
    limit: Annotated[int, Meta(ge=1, le=LETTERS_SHOWN)] = 10
    value_characters: Characters = VALUE_DEFAULT


async def dead_letters(desk: AssistantDesk, asked: AskedLetters) -> Answer:
    """Read dead letters: records that an app or a sink could not process.

    Each has where it came from, the operator that failed on it, the error and its trace.
    """
    async with desk.log() as log:
        topics = [each.name for each in await log.admin().list_topics()]
        # By its name: to look into each topic for letters would read the whole log.
        if not asked.topic:
            return {"topics": [each for each in topics if each.endswith(DLQ_SUFFIX)]}
        # Before the reader is made: it asks for offsets of a group that the name is part of.
        if asked.topic not in topics:
            raise UsageError(f"there is no topic {asked.topic!r}{nearest(asked.topic, topics)}")
        async with letter_reader(log, asked.topic) as consumer:
            sent = await progress(log, consumer, asked.topic)
            if asked.include_sent:
                begins = await consumer.begin_offsets(sent)
                found = await read_letters(log, consumer, begins, asked.limit + 1)
            else:
                read = await read_unsent(log, consumer, sent, asked.limit + 1)
                found = unsent(read, sent)
    rows = [letter_row(shown_letter(each, sent), asked.value_characters) for each in found]
    return {"letters": rows[: asked.limit], "more": len(rows) > asked.limit}


def letter_row(letter: Letter, characters: int) -> dict[str, object]:
    """Return a dead letter for an answer."""
    record = record_row(letter.record, characters)
    return {
        "letter": letter.position,
        "from": {"topic": letter.topic, "partition": letter.partition, "offset": letter.offset},
        "operator": letter.node,
        "error": f"{letter.exception}: {letter.message}"[:TRACE_SHOWN],
        "attempts": letter.attempts,
        "time": record["time"],
        "key": record["key"],
        "value": record["value"],
        **_trace(letter.trace),
        **({"only_the_app_may_write_it": True} if letter.is_internal else {}),
        **({"sent_again": True} if letter.is_sent else {}),
    }


APP_TOOLS: Final = (
    tool(NoArguments, list_tables, title="Tables of the app"),
    tool(AskedRows, read_table, title="Rows of a table", from_records="rows"),
    tool(NoArguments, worker_health, title="A worker's state"),
    tool(AskedConnectors, connectors, title="Connectors", from_records="trace"),
    tool(AskedLetters, dead_letters, title="Dead letters", from_records="letters"),
)
