"""Search task: sends actions to `_bulk`, one request after the other, to a node that answers."""

from __future__ import annotations

import ssl
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

import httpx

from streamlog.connect import (
    BadRecords,
    Batch,
    ConnectError,
    Retriable,
    Secret,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connectors.http.http_client import check_taken, errors_of
from streamlog.connectors.search.bulk_actions import (
    BulkAction,
    BulkRules,
    bodies,
    plan_actions,
    settle,
)
from streamlog.durations import Dur, duration_ms
from streamlog.repeated import logger

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The largest answer that is read; one of 5,000 errors has some megabytes."""
TOO_LARGE: Final = 413
FILTER: Final = (
    "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.reason"
)
"""`filter_path`: what is read of an answer, which else repeats ids and shards of each action."""

log = logger(__name__)


class SearchTask(SinkTask[object, object]):
    """A client, which keeps its connections between requests.

    Documents are sent by `write`, as only their server knows which of them are bad. Nothing is lost
    by that: a record that is written again has its id and version, and changes nothing.
    """

    def __init__(
        self,
        *,
        rules: BulkRules,
        urls: Sequence[str],
        api_key: Secret | None,
        login: tuple[str, Secret] | None,
        verify: ssl.SSLContext | bool,
        body_bytes: int,
        timeout: Dur,
        context: SinkContext,
    ) -> None:
        """Create a task; see `Search` for the settings."""
        self._rules, self._urls = rules, urls
        self._api_key, self._login, self._verify = api_key, login, verify
        self._body_bytes, self._timeout = body_bytes, timeout
        self._context = context
        self._stack = AsyncExitStack()
        self._url = 0
        """The node in use, by its index in the URLs."""
        self._done: dict[TopicPartition, set[int]] = {}
        """The offsets of this flush that the server has. A flush that is repeated because some
        documents found no room does not send all others again."""

    async def __aenter__(self) -> Self:
        """Make the client; it connects with the first request."""
        login = self._login
        headers = {"Content-Type": "application/x-ndjson"}
        if self._api_key is not None:
            headers["Authorization"] = f"ApiKey {self._api_key.reveal()}"
        client = httpx.AsyncClient(
            headers=headers,
            auth=None if login is None else (login[0], login[1].reveal()),
            verify=self._verify,
            timeout=duration_ms(self._timeout) / 1000,
            # A redirect would carry the login to another server.
            follow_redirects=False,
        )
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the connections."""
        await self._stack.aclose()

    async def write(self, batch: Batch[object, object]) -> None:
        """Send the documents of a batch, in order.

        Raises:
            BadRecords: records have no document, or the server refuses them.
            Retriable: the server can't take all documents now.
            ConfigError: the server refuses the index, the login, or any request to this URL.
        """
        done = self._done.setdefault(batch.partition, set())
        plan = plan_actions(self._rules, batch)
        # Before anything is sent: the error policy may stop the task here.
        if plan.bad:
            raise BadRecords(plan.bad)
        if plan.ignored:
            self._context.count("tombstones", plan.ignored)
        bad: dict[int, str] = {}
        left = [action for action in plan.actions if action.offset not in done]
        for body in bodies(left, self._body_bytes):
            bad |= await self._send(batch, body, done)
        if bad:
            raise BadRecords(bad)

    async def _send(
        self, batch: Batch[object, object], actions: Sequence[BulkAction], done: set[int]
    ) -> dict[int, str]:
        """Send one request, or its halves if it is too large; returns what the server refuses."""
        # A stack, the earlier half on top: actions of a document keep their order.
        waiting, bad = [actions], dict[int, str]()
        while waiting:
            sent = waiting.pop()
            answer = await self._ask(b"".join(action.lines for action in sent))
            if answer is not None:
                bad |= self._settle(batch, sent, answer, done)
            elif len(sent) > 1:
                middle = len(sent) // 2
                waiting += [sent[middle:], sent[:middle]]
            else:
                size = len(sent[0].lines)
                bad[sent[0].at] = f"the document, of {size} bytes, is too large for the server"
        return bad

    def _settle(
        self,
        batch: Batch[object, object],
        sent: Sequence[BulkAction],
        answer: bytes,
        done: set[int],
    ) -> dict[int, str]:
        outcome = settle(sent, answer)
        done.update(outcome.done)
        if outcome.conflicts:
            self._context.count("conflicts", outcome.conflicts)
        # A repeated flush meets versions of its own range. What lies behind the range was written
        # by a successor, or belongs to a topic that was there before.
        if outcome.newest >= batch.next_offset:
            topic, number = batch.partition
            log.warning(
                "sink %r: documents of %s-%d have versions up to %d, and its records only offsets "
                "up to %d: newer documents stay. If the topic was created again, write it to "
                "another index, or delete this one",
                self._context.name, topic, number, outcome.newest, batch.next_offset - 1,
            )  # fmt: skip
        if outcome.again:
            raise Retriable(f"{self._urls[self._url]}: {outcome.again}")
        return outcome.bad

    async def _ask(self, body: bytes) -> bytes | None:
        """Return the answer to a request; None if its body is too large for the server."""
        url = self._urls[self._url]
        try:
            async with (
                errors_of(url),
                self._client.stream(
                    "POST", f"{url.rstrip('/')}/_bulk", params={"filter_path": FILTER}, content=body
                ) as answer,
            ):
                if answer.status_code == TOO_LARGE:
                    return None
                whole = await _bounded(answer)
        except Retriable:
            # The next attempt goes to another node: this one may be down for long.
            self._url = (self._url + 1) % len(self._urls)
            raise
        check_taken(whole, self._context.now())
        return whole.content

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Do nothing: the server has answered for each document."""
        for partition in offsets:
            self._done.pop(partition, None)

    async def abort(self) -> None:
        """Do nothing: documents that were sent stay, and are not sent again."""

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Forget what was sent of partitions that another task gets."""
        for partition in partitions:
            self._done.pop(partition, None)


async def _bounded(answer: httpx.Response) -> httpx.Response:
    """Return an answer with its content, which was streamed."""
    data = bytearray()
    async for part in answer.aiter_bytes():
        data += part
        if len(data) > ANSWER_BYTES_MAX:
            raise ConnectError(f"the answer of {answer.request.url} exceeds {ANSWER_BYTES_MAX}")
    # Of the headers only this one matters; that of an encoding would decode the content once more.
    headers = {"Retry-After": answer.headers.get("Retry-After", "")}
    return httpx.Response(
        answer.status_code, headers=headers, content=bytes(data), request=answer.request
    )
