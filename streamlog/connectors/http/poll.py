"""Poll: a source that asks an HTTP API for what is new, by cursor, by pages or as a whole.

Rule of the module: what a page means is decided without I/O (`PollOffset.behind`), so that the same
answers give the same records and offsets.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Literal

import httpx
import msgspec

from streamlog.connect import (
    ConnectError,
    Guarantee,
    Json,
    Read,
    Secret,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.http.http_client import check_answer, check_url, errors_of, http_client
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError

ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""The largest answer: a Read holds at most 16 MiB."""


class PolledPage(msgspec.Struct, frozen=True):
    """An answer of the server.

    Attributes:
        records: its records.
        etag: the server's name of this content; None if it gives none.
        crc: the checksum of the content.
        next_url: the page behind it (`Link: rel="next"`); None if it is the last.
    """

    records: list[Json]
    etag: str | None
    crc: int
    next_url: str | None


class PollOffset(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far an API was read.

    Attributes:
        cursor: the cursor of the last record, in mode "cursor".
        url: the page to ask for next, in mode "pages"; "" for the first.
        taken: the records of that page that were read.
        etag: the server's name of the content that was read last.
        crc: its checksum.
    """

    cursor: int | float | str | None = None
    url: str = ""
    taken: int = 0
    etag: str | None = None
    crc: int = 0


class Poll(Source[Any, Any], frozen=True, kw_only=True):
    """Asks a URL again and again; a record is an object of the JSON that it answers.

    Exactly once if what the server has answered stays: in mode "cursor" records come in the order
    of the cursor; in mode "pages" records are only appended. In mode "whole" all records of the
    answer are read whenever it has changed.

    Attributes:
        url: the URL to ask.
        every: how long after an answer without news it is asked again.
        mode: "whole"; "cursor": `cursor_parameter` carries the `cursor_field` of the last record;
            "pages": the header `Link: <...>; rel="next"` leads to the next page.
        records: where the list of records is in an answer, as "data.items"; "" if the answer is it.
        cursor_field: the field of a record that is its cursor, for "cursor".
        cursor_parameter: the parameter of the query that carries it, for "cursor".
        key: the field of a record that is its key; None for no key.
        headers: of each request.
        token: sent as `Authorization: Bearer`.
        timeout: how long an answer may take.
    """

    guarantee: ClassVar[Guarantee] = "exactly_once"

    url: str
    every: Dur = "60s"
    mode: Literal["whole", "cursor", "pages"] = "whole"
    records: str = ""
    cursor_field: str | None = None
    cursor_parameter: str | None = None
    key: str | None = None
    headers: Mapping[str, str] = {}
    token: Secret | None = None
    timeout: Dur = "30s"

    def check(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        check_url(self.url)
        duration_ms(self.timeout)
        if not duration_ms(self.every):
            raise ConfigError(f"every={self.every!r} must be longer than 0")
        has_cursor = self.cursor_field is not None, self.cursor_parameter is not None
        if has_cursor != (self.mode == "cursor",) * 2:
            raise ConfigError("mode='cursor', cursor_field and cursor_parameter need each other")

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[Any, Any]]:
        """Yield what is new, for ever."""
        del partition
        state = PollOffset() if offset is None else msgspec.convert(offset, PollOffset)
        async with http_client(self.headers, self.token, self.timeout) as client:
            while True:
                page = await self._ask(client, state, context)
                fresh, following = ([], state) if page is None else self.behind(state, page)
                # Whatever led further may lead further still; the whole answer does not.
                has_more = following != state and self.mode != "whole"
                if following != state:
                    yield self._read(fresh, following, context)
                state = following
                if not has_more:
                    await context.sleep(self.every)

    def behind(self, state: PollOffset, page: PolledPage) -> tuple[list[Json], PollOffset]:
        """Return the records of a page that are new, and the offset behind them."""
        match self.mode:
            case "cursor":
                if not page.records:
                    return [], state
                cursor = _at(page.records[-1], self.cursor_field or "")
                if not isinstance(cursor, int | float | str) or cursor == state.cursor:
                    raise ConnectError(
                        f"the last record has {self.cursor_field}={cursor!r}, which leads no "
                        "further: the server must answer with what is behind the cursor"
                    )
                return page.records, PollOffset(cursor=cursor)
            case "pages":
                # The last page grows until there is a next one: a part of it may be read already.
                if len(page.records) < state.taken:
                    raise ConnectError(
                        f"a page has {len(page.records)} records, but {state.taken} of it were "
                        "read: its records do not stay"
                    )
                fresh = page.records[state.taken :]
                if page.next_url is not None:
                    return fresh, PollOffset(url=page.next_url)
                if not fresh:
                    return [], state
                taken = len(page.records)
                return fresh, PollOffset(url=state.url, taken=taken, etag=page.etag)
            case _:
                # An answer may have the same bytes under another ETag, or under none.
                is_new = page.crc != state.crc or not state.crc
                after = PollOffset(etag=page.etag, crc=page.crc)
                return (page.records, after) if is_new else ([], state)

    async def _ask(
        self, client: httpx.AsyncClient, state: PollOffset, context: SourceContext
    ) -> PolledPage | None:
        """Return the server's answer; None if nothing has changed."""
        url = httpx.URL(state.url or self.url)
        if self.cursor_parameter is not None and state.cursor is not None:
            url = url.copy_set_param(self.cursor_parameter, state.cursor)
        # The content is known by its ETag only as a whole, or as the page that was read last.
        headers = {"If-None-Match": state.etag} if state.etag is not None else {}
        body = b""
        async with (
            errors_of(str(url)),
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code == httpx.codes.NOT_MODIFIED:
                return None
            check_answer(answer, context.now())
            async for data in answer.aiter_bytes():
                body += data
                if len(body) > ANSWER_BYTES_MAX:
                    raise ConnectError(f"{url} answers more than {ANSWER_BYTES_MAX} bytes")
        return self._page(url, answer, body)

    def _page(self, url: httpx.URL, answer: httpx.Response, body: bytes) -> PolledPage:
        try:
            content: Json = msgspec.json.decode(body)
        except msgspec.DecodeError as error:
            raise ConnectError(f"{url} answers with no JSON: {error}") from error
        found = _at(content, self.records) if self.records else content
        if not isinstance(found, list):
            where = f" at {self.records}" if self.records else ""
            raise ConnectError(f"{url} answers with no list{where}")
        link = answer.links.get("next", {}).get("url")
        next_url = None if link is None else url.join(link)
        if next_url is not None and (next_url.scheme, next_url.netloc) != (url.scheme, url.netloc):
            # The token would go there.
            raise ConnectError(
                f"{url} leads to {next_url}, which is another server: the login is for this one"
                " alone; let the server link to its own next pages"
            )
        etag = answer.headers.get("ETag")
        return PolledPage(
            found, etag, zlib.crc32(body), None if next_url is None else str(next_url)
        )

    def _read(
        self, records: list[Json], state: PollOffset, context: SourceContext
    ) -> Read[Any, Any]:
        made = [
            context.record(each, key=None if self.key is None else _at(each, self.key))
            for each in records
        ]
        offset: SourceOffset = msgspec.to_builtins(state)
        return Read(made, offset)


def _at(content: Json, path: str) -> Json:
    """Return what is under names that are joined by dots; None if there is nothing."""
    for name in path.split("."):
        if not isinstance(content, dict):
            return None
        content = content.get(name)
    return content
