"""Syslog: a source of the messages that devices and programs send by syslog.

Over UDP (RFC 5426), TCP (RFC 6587) and TLS (RFC 5425). Not done here: parsing (`syslog_message`),
frames and sockets, which other listeners share.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import ClassVar
from zoneinfo import ZoneInfo

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
    TlsFiles,
    TransportName,
    check_listeners,
    listener_parts,
    listening,
    parse_address,
)
from streamlog.connectors.message_framing import SyslogFramer
from streamlog.connectors.syslog.syslog_message import SyslogMessage, parse_syslog
from streamlog.durations import when_ms
from streamlog.errors import ConfigError

__all__ = ["Syslog", "SyslogMessage"]


class Syslog(Source[str, SyslogMessage], frozen=True, kw_only=True):
    """Receives syslog; a record is a `SyslogMessage` whose key is its host.

    At most once: syslog has no acknowledgement, so what a sender has sent and the log does not have
    yet is lost when the worker dies. The event time is that of the arrival, as clocks of devices
    may be far off; `SyslogMessage.timestamp` is the sender's.

    Attributes:
        address: HOST:PORT; ":PORT" is 127.0.0.1.
        transport: "udp", or "tcp" (frames by octet counts and by lines).
        tls: the files of TLS, for "tcp"; None for plain text.
        zone: the time zone of times that have none (RFC 3164), such as "Europe/Berlin".
        listeners: how many tasks may listen; those of one machine share the port.
    """

    guarantee: ClassVar[Guarantee] = "at_most_once"

    address: str
    transport: TransportName = "udp"
    tls: TlsFiles | None = None
    zone: str = "UTC"
    listeners: int = 1

    def check(self) -> None:
        """Raise ConfigError if the settings do not go together."""
        parse_address(self.address)
        if self.transport == "udp" and self.tls is not None:
            raise ConfigError("tls needs transport='tcp'")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise ConfigError(f"zone={self.zone!r} is no time zone, such as UTC") from error
        check_listeners(self.listeners)

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return a part for each listener."""
        del context
        return listener_parts(self.listeners)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[str, SyslogMessage]]:
        """Yield what arrives."""
        del partition, offset
        inbox = Inbox()
        zone = ZoneInfo(self.zone)
        framer = SyslogFramer
        async with listening(
            self.transport, self.address, inbox, framer, tls=self.tls, context=context
        ):
            while True:
                received = await inbox.take()
                now = context.now()
                messages = [parse_syslog(each.data, now=now, zone=zone) for each in received]
                # Without a name of its own, the sender is known by its address.
                pairs = zip(messages, received, strict=True)
                keys = [message.host or each.peer for message, each in pairs]
                times = [when_ms(now)] * len(keys)
                yield Read.columns(messages, {}, keys=keys, timestamps_ms=times)
