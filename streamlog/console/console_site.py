"""Console site: the ASGI application that answers the console's requests.

    GET  /console/...                  a page
    GET  /console/events/...           its updates, as server-sent events
    GET  /console/static/...           styles and scripts
    POST /console/...                  a change (`page_changes`)

A process may add sections of its own (`MorePages`), as a worker does.

Rules of the module: bodies and streams have a bound; a change is checked by `request_guard`, and
written down whether it was made or refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

from streamlog.clock import Clock
from streamlog.console.connect_desk import ConnectDesk, ConnectPort
from streamlog.console.log_watch import LogWatch
from streamlog.console.markup import h1, joined
from streamlog.console.message_reader import follow
from streamlog.console.page_changes import PageChange, change_of
from streamlog.console.page_views import (
    PageViews,
    Parts,
    Query,
    followed_by,
    parts_of,
    path_below,
    trouble,
)
from streamlog.console.pages.change_pages import Change
from streamlog.console.pages.message_pages import Asked, messages
from streamlog.console.pages.page_layout import Frame, Section, View, navigation, page
from streamlog.console.pages.page_parts import ROOT, heading_row, notice
from streamlog.console.request_guard import HEADERS, READING, RequestGuard, Visitor
from streamlog.console.schema_desk import SchemaDesk
from streamlog.console.turns import Turns
from streamlog.errors import StreamlogError
from streamlog.http_access.passwords import USER
from streamlog.registry_client import RegistrySettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

BODY_BYTES_MAX: Final = 256 * 1024
BODY_S: Final = 15.0
FIELDS_MAX: Final = 50
STREAMS_MAX: Final = 64
"""Pages that are kept up to date at a time; further ones stay as they are, and try again."""
TICK_S: Final = 1.0
"""Between two updates of a page that does not depend on a look at the log."""
QUIET_MS: Final = 15_000
"""A stream says something at least this often: proxies end one that is silent for a minute."""
UNCHANGED: Final = ": unchanged\n\n"
"""A comment, which browsers pass over; it also finds out whether the browser is still there."""
CHANGES_MAX: Final = 500
"""Changes that the page of changes shows; the log of the process has all."""
SAID_MAX: Final = 2_000
"""Characters of a change or its outcome that are written down."""
FOREVER: Final = "public, max-age=31536000, immutable"
STATIC: Final = Path(__file__).parent / "static"
TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
SEE_OTHER: Final = 303
FORBIDDEN: Final = 403
NOT_ALLOWED: Final = 405
TIMED_OUT: Final = 408
TOO_LARGE: Final = 413
BUSY: Final = 503
SECTIONS: Final = (
    Section("topics", "Topics"),
    Section("groups", "Groups"),
    Section("schemas", "Schemas"),
    Section("connectors", "Connectors"),
    Section("brokers", "Brokers"),
    Section("mirrors", "Mirrors"),
    Section("changes", "Changes"),
)

audit = logging.getLogger("streamlog.audit")
"""Every change that was asked for. Not a repeated logger: two equal changes are two lines."""


class MorePages(Protocol):
    """Port: what a console shows of its process, beside the pages of the log."""

    sections: Sequence[Section]
    caption: str
    """What the process is, for the top of each page."""

    async def run(self) -> None:
        """Look at the process until cancelled."""

    async def view(self, parts: Parts, query: Query, token: str | None) -> View:
        """Return a page of these sections.

        Raises:
            StreamlogError: what it shows can't be looked at.
        """

    def change_of(self, parts: Parts) -> PageChange | None:
        """Return the change that a path stands for; None if nothing can be sent there."""


class Console:
    """The console of one process."""

    def __init__(
        self,
        watch: LogWatch,
        clock: Clock,
        *,
        operators: Collection[str] | None = None,
        more: MorePages | None = None,
        registry: Callable[[], RegistrySettings | None] = lambda: None,
        connect: ConnectPort | None = None,
    ) -> None:
        """Prepare to answer.

        Args:
            watch: looks at the log.
            clock: the time.
            operators: the users that may change something; None: the server has no users.
            more: further sections; None: those of the log are all.
            registry: returns where the schema registry is at present; None: there is none.
            connect: answers for a Connect service; None: there is none.
        """
        self._watch, self._clock = watch, clock
        self._more = more
        self._own = frozenset() if more is None else frozenset(each.name for each in more.sections)
        # A worker has no setting that names a Connect service: the page would lead nowhere.
        without = {"connectors"} if more is not None and connect is None else set[str]()
        self._hidden = self._own | without
        self._guard = RequestGuard(secrets.token_bytes(32), operators)
        self._changes = deque[Change](maxlen=CHANGES_MAX)
        self._turns = Turns(clock)
        self._schemas, self._connect = SchemaDesk(registry, clock), ConnectDesk(connect)
        self._views = PageViews(
            watch, self._changes, self._turns, schemas=self._schemas, connect=self._connect
        )
        self._streams = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Look at the log in the block; its end ends the updates of open pages."""
        async with asyncio.TaskGroup() as tasks:
            watching = [tasks.create_task(self._watch.run(), name="console")]
            if self._more is not None:
                watching.append(tasks.create_task(self._more.run(), name="console of the worker"))
            try:
                yield
            finally:
                # Before the server ends, which waits for its streams.
                self._watch.stop()
                for each in watching:
                    each.cancel()
                self._schemas.close()
                self._connect.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        answer = await self._answer(request, self._guard.visitor(scope.get(USER)))
        for name, value in HEADERS.items():
            answer.headers[name] = value
        # Pages hold records and names of users: no cache on the way keeps them.
        answer.headers.setdefault("cache-control", "no-store")
        if not isinstance(answer, StreamingResponse):
            await answer(scope, receive, send)
            return
        # Counted here, before anything else runs: many that come at once would all find room.
        self._streams += 1
        try:
            await answer(scope, receive, send)
        finally:
            self._streams -= 1

    async def _answer(self, request: Request, visitor: Visitor) -> Response:
        parts = parts_of(request.scope)
        if request.method == "POST":
            return await self._change(request, parts, visitor)
        if request.method not in READING:
            return Response(status_code=NOT_ALLOWED, headers={"allow": "GET, HEAD, POST"})
        match parts:
            case ("static", name):
                return _file(name, request.url.query)
            case ("events", *rest):
                return self._updates(request, tuple(rest), visitor)
            case ("overview",):
                return RedirectResponse(f"{ROOT}/", 308)
            case _:
                await self._turns.begin_page()
                view = await self._view(request, parts, visitor)
                return self._page(request, parts, visitor, view)

    async def _view(self, request: Request, parts: Parts, visitor: Visitor) -> View:
        # A reader gets no token, so that no form of a reader can be sent.
        token = self._guard.token(visitor) if visitor.is_operator else None
        query = dict(request.query_params)
        self._watch.want()
        if self._more is None or not self._is_own(parts):
            return await self._views.view(parts, query, token)
        try:
            return await self._more.view(parts, query, token)
        except StreamlogError as error:
            return trouble(parts, error)

    def _is_own(self, parts: Parts) -> bool:
        """Return whether a page shows the process, and not the log."""
        return bool(parts) and parts[0] in self._own

    def _frame(self, parts: Parts, visitor: Visitor) -> Frame:
        sight = self._watch.sight
        found = sight.findings
        is_critical = bool(sight.error) or any(each.severity == "critical" for each in found)
        marks = len(found) or int(bool(sight.error))
        first = Section("overview", "Overview", marks, "bad" if is_critical else "warn")
        own, caption = ((), "") if self._more is None else (self._more.sections, self._more.caption)
        cluster = f"cluster {sight.cluster_id}" if sight.cluster_id else ""
        return Frame(
            sections=(first, *own, *(each for each in SECTIONS if each.name not in self._hidden)),
            current=parts[0] if parts else "overview",
            cluster=caption or cluster,
            user=visitor.user,
            is_operator=visitor.is_operator,
            version=_version(),
        )

    def _page(self, request: Request, parts: Parts, visitor: Visitor, view: View) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        live = f"{ROOT}/events{path_below(request.scope)}{query}"
        return HTMLResponse(page(self._frame(parts, visitor), view, live), view.status)

    # ---- updates ----

    def _updates(self, request: Request, parts: Parts, visitor: Visitor) -> Response:
        # Each one renders its page at every look: the bound keeps that work bounded as well.
        if self._streams >= STREAMS_MAX:
            return Response(status_code=BUSY, headers={"retry-after": "10"})
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        asked = followed_by(parts, dict(request.query_params))
        events = (
            self._page_events(request, parts, visitor)
            if asked is None
            else self._tail(*asked, request)
        )
        return StreamingResponse(self._watched(events), media_type="text/event-stream")

    async def _watched(self, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
        # Closed with the stream, and not by the collector: it may hold a consumer.
        async with self._watch.watched(), aclosing(events):
            async for each in events:
                yield each

    async def _page_events(
        self, request: Request, parts: Parts, visitor: Visitor
    ) -> AsyncGenerator[str]:
        """Yield the page's content and the navigation, whenever they have changed."""
        last: dict[str, str] = {}
        beats = self._ticks() if self._is_own(parts) else self._watch.sights(QUIET_MS)
        async for _ in beats:
            await self._turns.begin_page(is_update=True)
            view = await self._view(request, parts, visitor)
            now = {
                "content": view.content.text,
                "sections": navigation(self._frame(parts, visitor)).text,
            }
            changed = [_event(name, text) for name, text in now.items() if last.get(name) != text]
            last = now
            yield "".join(changed) or UNCHANGED
            # No page asks for updates of such a view, which may be a search through the log.
            if not view.is_live:
                return

    async def _ticks(self) -> AsyncIterator[None]:
        stopped = self._watch.stopped
        while not stopped.is_set():
            yield
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), TICK_S)

    async def _tail(self, topic: str, asked: Asked, request: Request) -> AsyncGenerator[str]:
        """Yield the page of messages, whenever there are new ones, and comments in between."""
        query = dict(request.query_params)
        try:
            async with aclosing(
                follow(
                    self._watch.log,
                    topic,
                    asked,
                    stopped=self._watch.stopped,
                    turns=self._turns,
                    decoder_of=self._schemas.decoder_of,
                    quiet_ms=QUIET_MS,
                )
            ) as found:
                async for each in found:
                    view = None if each is None else messages(topic, query, each)
                    yield UNCHANGED if view is None else _event("content", view.content.text)
        except StreamlogError as error:
            yield _event("content", messages(topic, query, None, error=str(error)).content.text)

    # ---- changes ----

    async def _change(self, request: Request, parts: Parts, visitor: Visitor) -> Response:
        own = self._more if self._is_own(parts) else None
        change = (
            change_of(self._watch, self._connect, parts) if own is None else own.change_of(parts)
        )
        if change is None:
            return Response(status_code=NOT_ALLOWED, headers={"allow": "GET, HEAD"})
        # Read before it is refused: what is left of a body would be the next request.
        form = await _form(request)
        if isinstance(form, int):
            return Response(status_code=form)
        refusal = self._guard.refusal(visitor, request.headers, form)
        if refusal:
            self._write_down(request, visitor, change.what, f"refused: {refusal}")
            content = joined(
                heading_row(h1["Refused"]), notice("bad", f"Nothing was changed: {refusal}.")
            )
            view = View(title="Refused", content=content, is_live=False, status=FORBIDDEN)
            return self._page(request, parts, visitor, view)
        made = await change.make(form, self._guard.token(visitor))
        self._write_down(request, visitor, made.what, made.error or "done")
        if made.view is None:
            return RedirectResponse(made.see, SEE_OTHER)
        return self._page(request, parts, visitor, made.view)

    def _write_down(self, request: Request, visitor: Visitor, what: str, outcome: str) -> None:
        client = request.client.host if request.client else "?"
        # Names come from the address, and outcomes repeat them.
        what, outcome = what[:SAID_MAX], outcome[:SAID_MAX]
        change = Change(
            at_ms=self._clock.wall_ms(),
            user=visitor.user,
            client=client,
            what=what,
            outcome=outcome,
        )
        # Also a refusal: attempts are what an audit looks for.
        self._changes.append(change)
        # Quoted: a name of a group may hold a line break, and a second line would be forged.
        audit.info("user=%r client=%s change=%r outcome=%r", visitor.user, client, what, outcome)


def _event(name: str, text: str) -> str:
    # A carriage return would end a line of the event; in HTML its number means what it means.
    lines = text.replace("\r", "&#13;").split("\n")
    return f"event: {name}\n" + "".join(f"data: {line}\n" for line in lines) + "\n"


async def _form(request: Request) -> dict[str, str] | int:
    """Return the fields of a body, or the status of its refusal."""
    try:
        # A client that sends a byte now and then would keep its connection for ever.
        async with asyncio.timeout(BODY_S):
            body = await _body(request)
    except (TimeoutError, ClientDisconnect):
        return TIMED_OUT
    if body is None:
        return TOO_LARGE
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError:
        return {}


async def _body(request: Request) -> bytes | None:
    """Return the body; None if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            return None
    return bytes(body)


@cache
def _files() -> Mapping[str, bytes]:
    return {each.name: each.read_bytes() for each in STATIC.iterdir() if each.suffix in TYPES}


@cache
def _version() -> str:
    whole = hashlib.sha256()
    for name, content in sorted(_files().items()):
        whole.update(name.encode() + content)
    return whole.hexdigest()[:12]


def _file(name: str, query: str) -> Response:
    # By its name among those that were read at the start: no path of a request opens a file.
    content = _files().get(name)
    if content is None:
        return Response(status_code=404)
    # Under the address of its version a file never changes, and under another it may.
    is_of_version = query == f"v={_version()}"
    return Response(
        content,
        media_type=TYPES[Path(name).suffix],
        headers={"cache-control": FOREVER if is_of_version else "no-cache"},
    )
