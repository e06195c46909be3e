"""EmbeddedTransport: the Transport port to a broker in this process.

Client and broker exchange message objects without encoding them; record batches are passed on as
bytes. Otherwise it behaves like a connection over a socket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.broker.coordinator.group.classic_group import IN_PROCESS_HOST
from streamlog.broker.handlers import AnyAnswer
from streamlog.broker.security.principals import IN_PROCESS, RequestContext
from streamlog.errors import ConnectionLost, LogError, RequestTimedOut
from streamlog.protocol.api_table import APIS, TRANSACTION_FEATURE, TRANSACTIONS_V2, api_of
from streamlog.protocol.messages.produce_and_fetch import FetchResponse
from streamlog.protocol.schema import one_buffer
from streamlog.replace import replace
from streamlog.transport.client_connection import AnswerDeadline, Transport
from streamlog.transport.connection_meter import ConnectionMeter

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker
    from streamlog.protocol.schema import Message

_log = repeated.logger(__name__)


class EmbeddedTransport(Transport):
    """Passes requests directly to `Broker.begin`."""

    def __init__(self, broker: Broker, *, client_id: str = "streamlog") -> None:
        self.meter = ConnectionMeter()
        """The numbers of requests and answers; no bytes, because nothing is encoded."""
        self._broker = broker
        self._closed = False
        self._contexts = {
            api.request: RequestContext(
                api.max_version, client_id, IN_PROCESS_HOST, principal=IN_PROCESS
            )
            for api in APIS.values()
        }

    async def call(
        self, request: Message, *, timeout_ms: int, version_max: int | None = None
    ) -> Message:
        """See `Transport.call`."""
        answer = self._begin(request, version_max)
        if isinstance(answer, asyncio.Future):
            try:
                async with AnswerDeadline(timeout_ms):
                    answer = await answer
            except TimeoutError:
                raise RequestTimedOut(
                    f"the broker in this process did not answer {api_of(type(request)).name} "
                    f"within {timeout_ms} ms"
                ) from None
        else:
            # A call over a socket always yields to the event loop. Without this, a caller in a loop
            # would starve all other tasks.
            await asyncio.sleep(0)
        if answer is None:
            raise TypeError(f"{api_of(type(request)).name} has no response: use send")
        if isinstance(answer, FetchResponse):
            _read_records(answer)
        self.meter.received.record(0)
        return answer

    async def send(self, request: Message, *, version_max: int | None = None) -> None:
        """See `Transport.send`. As over a socket, a refusal is logged and not raised."""
        try:
            answer = self._begin(request, version_max)
        except LogError as refusal:
            _tell_refusal(refusal)
            return
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(_on_sent)

    async def close(self) -> None:
        """See `Transport.close`. The broker keeps running."""
        self._closed = True

    def version(self, api_key: int) -> int:
        """See `Transport.version`: always the latest, since both sides are of one release."""
        return APIS[api_key].max_version

    def feature(self, name: str) -> int:
        """See `Transport.feature`."""
        return {TRANSACTION_FEATURE: TRANSACTIONS_V2}.get(name, 0)

    def _begin(self, request: Message, version_max: int | None = None) -> AnyAnswer:
        if self._closed:
            raise ConnectionLost("the client closed this transport")
        self.meter.sent.record(0)
        context = self._contexts[type(request)]
        if version_max is not None:
            context = replace(context, version=min(context.version, version_max))
        return self._broker.begin(request, context)


def _on_sent(answer: asyncio.Future[Message | None]) -> None:
    refusal = None if answer.cancelled() else answer.exception()
    if refusal is not None:
        _tell_refusal(refusal)


def _tell_refusal(refusal: BaseException) -> None:
    _log.warning("dropped a record: %s", refusal)


def _read_records(response: FetchResponse) -> None:
    """Read ranges of files into memory; over a socket, the kernel would send them."""
    for topic in response.responses:
        for partition in topic.partitions:
            if partition.records is not None:
                partition.records = one_buffer(partition.records)
