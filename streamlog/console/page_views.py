"""Page views: finds the page that a path names, and what it shows.

Paths come as decoded parts, since names of groups may hold slashes. Rule of the module: an error is
a page as well, and no page waits for a look at the whole log.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import unquote

from streamlog.console.cluster_looks import cluster_view, find_mirror, look_at_mirrors
from streamlog.console.connect_desk import ConnectDesk
from streamlog.console.group_looks import look_at_group, plan_reset
from streamlog.console.log_watch import LogWatch
from streamlog.console.markup import h1, joined
from streamlog.console.message_reader import find
from streamlog.console.page_changes import (
    look_at_partitions,
    look_at_settings,
    try_partitions,
)
from streamlog.console.pages.broker_pages import brokers
from streamlog.console.pages.change_pages import Change, changes
from streamlog.console.pages.connector_pages import (
    connector,
    connectors,
    find_connector,
    no_service,
)
from streamlog.console.pages.group_pages import (
    GroupLook,
    ResetForm,
    group,
    groups,
    members,
    no_group,
    reset,
)
from streamlog.console.pages.message_pages import Asked, asked_of, messages
from streamlog.console.pages.mirror_pages import mirror, mirrors
from streamlog.console.pages.overview_page import overview
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import ROOT, heading_row, nothing, notice
from streamlog.console.pages.partition_form import add_partitions
from streamlog.console.pages.schema_pages import (
    Checked,
    no_registry,
    no_subject,
    schema_by_id,
    subject,
    subjects,
)
from streamlog.console.pages.topic_forms import create_form, settings, write_form
from streamlog.console.pages.topic_pages import no_topic, partitions, readers, topics
from streamlog.console.schema_desk import SchemaDesk
from streamlog.console.turns import Turns
from streamlog.errors import (
    LogError,
    RequestTimedOut,
    SchemaRegistryError,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from starlette.types import Scope

Parts: TypeAlias = tuple[str, ...]
Query: TypeAlias = Mapping[str, str]


def path_below(scope: Scope) -> str:
    """Return the path below the console's, as the browser sent it."""
    raw = scope.get("raw_path")
    path = raw.decode("latin-1") if isinstance(raw, bytes) else str(scope["path"])
    return path.partition("?")[0].removeprefix(ROOT)


def parts_of(scope: Scope) -> Parts:
    """Return the parts of a request's path below the console's, decoded."""
    # Split first: an encoded slash belongs to a name.
    return tuple(unquote(each) for each in path_below(scope).split("/") if each)


def followed_by(parts: Parts, query: Query) -> tuple[str, Asked] | None:
    """Return the topic whose newest records a page follows, and which of them; None: none."""
    match parts:
        case ("topics", name) | ("topics", name, "messages") if query.get("live") == "1":
            try:
                return name, asked_of(query)
            except UsageError:
                return None  # The page itself shows what is wrong.
        case _:
            return None


NOT_FOUND: Final = 404
DIGITS_MAX: Final = 9
SEARCHES_MAX: Final = 4
"""Searches for messages at a time. Each one may hold 100 MB for five seconds."""
SEARCH_WAIT_S: Final = 10.0


class PageViews:
    """The pages of one console."""

    def __init__(
        self,
        watch: LogWatch,
        changes_made: Sequence[Change],
        turns: Turns,
        *,
        schemas: SchemaDesk,
        connect: ConnectDesk,
    ) -> None:
        """`changes_made` grows while the process runs."""
        self._watch, self._changes, self._turns = watch, changes_made, turns
        self._schemas, self._connect = schemas, connect
        self._searches = asyncio.Semaphore(SEARCHES_MAX)

    async def view(  # noqa: PLR0911 - one for each page
        self, parts: Parts, query: Query, token: str | None
    ) -> View:
        """Return a page, which may be about an error.

        Args:
            parts: the path below the console's.
            query: the parameters of the address.
            token: for forms that change something; None if the user may only read.
        """
        try:
            match parts:
                case ("topics", *rest):
                    return await self._of_topics(tuple(rest), query, token)
                case ("groups", *rest):
                    return await self._of_groups(tuple(rest), query, token)
                case ("schemas", *rest):
                    return await schema_view(self._schemas, tuple(rest), query)
                case ("connectors", *rest):
                    return await _connector_view(self._connect, tuple(rest), query, token)
                case ("mirrors", *rest):
                    return await self._of_mirrors(tuple(rest), query, token)
                case ("brokers", tab):
                    return await cluster_view(self._watch.log, tab, query) or no_page()
        except StreamlogError as error:
            return trouble(parts, error)
        return self._of_sight(parts, query)

    def _of_sight(self, parts: Parts, query: Query) -> View:
        """Return a page of what the last look found, without a request to the log."""
        sight = self._watch.sight
        match parts:
            case ():
                return overview(sight)
            case ("brokers",):
                return brokers(sight, query)
            case ("changes",):
                return changes(self._changes, query)
            case _:
                return no_page()

    async def _of_topics(  # noqa: PLR0911 - one for each page
        self, parts: Parts, query: Query, token: str | None
    ) -> View:
        sight = self._watch.sight
        match parts:
            case () if query.get("create"):
                return create_form(query, token)
            case ():
                return topics(sight, query, can_create=token is not None)
            case (name,) | (name, "messages"):
                return await self._messages(name, query)
            case (name, "write"):
                return write_form(name, query, token)
            case (name, "groups"):
                return readers(sight, name, query)
            case (name, "partitions") if query.get("add"):
                return await self._more_partitions(name, query, token)
            case (name, "partitions"):
                return partitions(sight, name, query, can_add=token is not None)
            case (name, "settings"):
                return await self._settings(name, query, token)
            case _:
                return no_page()

    async def _settings(self, name: str, query: Query, token: str | None) -> View:
        try:
            # Not from the last look: a form must show the value that it changes.
            return settings(await look_at_settings(self._watch.log, name), query, token)
        except UnknownTopicOrPartition:
            return no_topic(name)

    async def _more_partitions(self, name: str, query: Query, token: str | None) -> View:
        wanted, error = None, ""
        try:
            look = await look_at_partitions(self._watch.log, name)
        except UnknownTopicOrPartition:
            return no_topic(name)
        if query.get("try"):
            try:
                wanted = await try_partitions(self._watch.log, look, query)
            except StreamlogError as refused:
                error = str(refused)
        return add_partitions(look, query, wanted, token, error=error)

    async def _messages(self, name: str, query: Query) -> View:
        try:
            asked = asked_of(query)
            # A live page fills by its updates.
            if asked.is_live:
                return messages(name, query, None)
            async with self._room_to_search():
                found = await find(
                    self._watch.log, name, asked, self._turns, self._schemas.decoder_of
                )
        # A topic that does not exist has no form; a partition that does not is a mistake in it.
        except UnknownTopicOrPartition as error:
            if query.get("partition"):
                return messages(name, query, None, error=str(error))
            return no_topic(name)
        except StreamlogError as error:
            # With the form, in which the mistake can be mended.
            return messages(name, query, None, error=str(error))
        return messages(name, query, found)

    @asynccontextmanager
    async def _room_to_search(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(SEARCH_WAIT_S):
                await self._searches.acquire()
        except TimeoutError:
            raise RequestTimedOut(
                f"{SEARCHES_MAX} other searches run at present: try again in some seconds"
            ) from None
        try:
            yield
        finally:
            self._searches.release()

    async def _of_groups(self, parts: Parts, query: Query, token: str | None) -> View:
        if not parts:
            return groups(self._watch.sight, query)
        name, *way = parts
        try:
            # Not from the last look: after a reset, the page has to show its outcome.
            look = await look_at_group(self._watch.log, name)
        except LogError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return no_group(name, "It was deleted, or its last offset has expired.")
        match way:
            case []:
                return group(look, self._watch.history.series(name), query)
            case ["members"]:
                return members(look, query)
            case ["reset"]:
                return await self._reset(look, query, token)
            case _:
                return no_page()

    async def _of_mirrors(self, parts: Parts, query: Query, token: str | None) -> View:
        found = await look_at_mirrors(self._watch.log)
        match parts:
            case ():
                return mirrors(found, query)
            case (name,):
                row = find_mirror(found, name)
                series = self._watch.mirror_history.series(name)
                return mirror(row, name, series, query, token=token)
            case _:
                return no_page()

    async def _reset(self, look: GroupLook, query: Query, token: str | None) -> View:
        asked = ResetForm(
            target=query.get("target", "earliest"),
            at=query.get("at", ""),
            topic=query.get("topic", ""),
        )
        moves, error = None, ""
        if query.get("try"):
            try:
                moves = await plan_reset(self._watch.log, look.group_id, asked)
            except StreamlogError as refused:
                error = str(refused)
        # Also for readers: what a reset would do is no secret, and only its button is missing.
        return reset(look, asked, moves, token=token, error=error)


def trouble(parts: Parts, error: StreamlogError) -> View:
    """Return the page about an error of the log or the process."""
    title = parts[0].capitalize()
    content = joined(heading_row(h1[title]), notice("bad", str(error)))
    return View(title=title, content=content, status=503)


def no_page() -> View:
    """Return the page where a path leads nowhere."""
    content = joined(
        heading_row(h1["Not found"]),
        nothing("There is no such page.", "The sections on the left lead to all of them."),
    )
    return View(title="Not found", content=content, is_live=False, status=404)


async def _connector_view(desk: ConnectDesk, parts: Parts, query: Query, token: str | None) -> View:
    if not desk.is_there:
        return no_service()
    match parts:
        case ():
            return connectors(await desk.connectors(), query)
        case (name,):
            return connector(find_connector(await desk.connectors(), name), name, token=token)
        case _:
            return no_page()


async def schema_view(desk: SchemaDesk, parts: Parts, query: Query) -> View:
    """Return a page about schemas."""
    if not desk.is_there:
        return no_registry()
    match parts:
        case () if query.get("id", ""):
            id_ = _digits(query["id"])
            return schema_by_id(await desk.schema(-1 if id_ is None else id_))
        case ():
            return subjects(await desk.subjects(), query)
        case (name,):
            return await _subject_view(desk, name, query)
        case _:
            return no_page()


async def _subject_view(desk: SchemaDesk, name: str, query: Query) -> View:
    try:
        found = await desk.subject(
            name, _digits(query.get("version", "")), _digits(query.get("against", ""))
        )
    except SchemaRegistryError as error:
        if error.status != NOT_FOUND:
            raise
        return no_subject(name, str(error))
    checked: Checked | str | None = None
    text = query.get("schema", "").strip()
    if text:
        try:
            checked = await desk.check(name, found.schema.kind, text)
        # What is wrong with the schema is the answer to the question.
        except StreamlogError as error:
            checked = str(error)
    return subject(found, query, checked)


def _digits(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    return int(text) if is_number else None
