"""Lines: a source of lines that programs send over TCP, or of datagrams (Flume's netcat)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import ClassVar

from streamlog.connect import (
    Guarantee,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.connectors.listeners import (
    Inbox,
    MessageConnection,
    Received,
    TlsFiles,
    TransportName,
    check_listeners,
    listener_parts,
    listening,
    parse_address,
)
from streamlog.connectors.message_framing import MESSAGE_BYTES_MAX, LineFramer
from streamlog.errors import ConfigError
from streamlog.record import Headers


class Lines(Source[None, bytes], frozen=True, kw_only=True):
    """Receives lines over TCP, or datagrams over UDP; each is a record.

    At least once with `acknowledge`, if the sender sends again what was not acknowledged; at most
    once without, because a process that dies loses what is in its buffers.

    Attributes:
        address: HOST:PORT; ":PORT" is 127.0.0.1.
        transport: "tcp" or "udp".
        acknowledge: whether a client gets the line `OK` for each line that is in the log.
        tls: the files of TLS, for "tcp"; None for plain text.
        peer_header: the name of a header for the sender's address; None for no header.
        line_bytes_max: a longer line is cut into several.
        listeners: how many tasks may listen; those of one machine share the port.
    """

    guarantee: ClassVar[Guarantee] = "at_most_once"

    address: str
    transport: TransportName = "tcp"
    acknowledge: bool = False
    tls: TlsFiles | None = None
    peer_header: str | None = None
    line_bytes_max: int = MESSAGE_BYTES_MAX
    listeners: int = 1

    def check(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        parse_address(self.address)
        if self.transport == "udp" and (self.acknowledge or self.tls is not None):
            raise ConfigError("acknowledge and tls need transport='tcp'")
        if not 1 <= self.line_bytes_max <= MESSAGE_BYTES_MAX:
            raise ConfigError(
                f"line_bytes_max={self.line_bytes_max} is not from 1 to {MESSAGE_BYTES_MAX}"
            )
        check_listeners(self.listeners)

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each listener."""
        del context
        return listener_parts(self.listeners)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, bytes]]:
        """Yield what arrives."""
        del partition, offset
        inbox = Inbox()
        framer = partial(LineFramer, self.line_bytes_max)
        async with listening(
            self.transport, self.address, inbox, framer, tls=self.tls, context=context
        ):
            while True:
                received = await inbox.take()
                yield Read.raw(
                    [each.data for each in received],
                    {},
                    headers=self._headers(received),
                    committed=partial(_acknowledge, received) if self.acknowledge else None,
                )

    def _headers(self, received: list[Received]) -> list[Headers] | None:
        name = self.peer_header
        return None if name is None else [((name, each.peer.encode()),) for each in received]


def _acknowledge(received: list[Received]) -> None:
    # One write for each client, however many of its lines have committed.
    counts: Counter[MessageConnection] = Counter(
        each.connection for each in received if each.connection is not None
    )
    for connection, count in counts.items():
        connection.answer(b"OK\n" * count)
