"""TLS on a listener: bytes in and out of OpenSSL, between a socket and a connection.

`TlsConnection` stands before the connection's own protocol and is its transport: it shakes hands,
decrypts what comes into the buffers that the connection gives, and encrypts what its `TlsWriter`
is given. Record batches that lie in files are read in chunks, since the kernel can't encrypt
what it sends from a file. Event loops have TLS of their own; theirs tells nobody why a handshake
failed, and buffers what a slow reader leaves, where an `Outlet` says to give no more.

Whoever does not shake hands within `HANDSHAKE_TIMEOUT_MS`, or does not speak TLS at all, is hung
up on with one line in the log that says which.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from streamlog import repeated
from streamlog.broker.config.listeners import Listener
from streamlog.broker.security.principals import Subject, distinguished_name
from streamlog.broker.server.certificates import Certificates, why
from streamlog.broker.server.socket_writer import SocketWriter, memory_bytes
from streamlog.broker.storage.disk.file_range import FileRange
from streamlog.protocol.schema import Buffer, Piece, one_buffer

if TYPE_CHECKING:
    from streamlog.broker.server.connections import Connections

HANDSHAKE_TIMEOUT_MS = 10_000
CHUNK_BYTES = 256 * 1024
"""Encrypted at a time; more waits for the client to take it."""
TURN_BYTES_MAX = 4 * 1024 * 1024
"""Then other connections have their turn, however fast this client reads."""
HANDSHAKE_RECORD = 0x16
"""The first byte of everybody who speaks TLS."""

_log = repeated.logger(__name__)


class TlsConnection(asyncio.BufferedProtocol):
    """One client of a listener with TLS; the transport of the connection behind it."""

    def __init__(
        self,
        certificates: Certificates,
        inner: asyncio.BufferedProtocol,
        *,
        listener: Listener,
        connections: Connections[Any],
    ) -> None:
        self.closed = asyncio.Event()
        self._inner = inner
        self._listener = listener
        self._connections = connections
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._certificates = certificates
        context = certificates.context()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._principal: str | None = None
        self._scratch = connections.scratch
        self._has_begun = False
        self._is_paused = False
        self._is_told = False
        self._is_open = False
        self._outlet: TlsWriter | None = None
        self._peer = "?"

    # ---- asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        # A cast: uvloop's transports have the methods of asyncio's, but not their classes.
        self._transport = cast("asyncio.Transport", transport)
        self._peer = (transport.get_extra_info("peername") or (self._peer,))[0]
        self._raw = SocketWriter(
            self._transport, on_room=self._on_room, on_failure=self._on_failure
        )
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(HANDSHAKE_TIMEOUT_MS / 1000, self._on_timeout)
        if not self._connections.admit(self, self._peer, self._listener.name):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._timer.cancel()
        self._connections.leave(self)
        if self._is_open:
            self._inner.connection_lost(exc)
        elif self._has_begun and not self._is_told:
            self._tell("it hung up in the middle; it may not take the broker's certificate")
        self._raw.close()
        self.closed.set()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size fits
        """Where the next bytes go."""
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Encrypted bytes have come there."""
        if not self._has_begun:
            self._has_begun = True
            if self._scratch[0] != HANDSHAKE_RECORD:
                self._fail(
                    f"it does not speak TLS, and the listener {self._listener.name} asks for it:"
                    f" its security.protocol has to be {self._listener.protocol}"
                )
                return
        self._incoming.write(self._scratch[:nbytes])
        self._take_up()

    def eof_received(self) -> bool:
        """The client will send no more."""
        return bool(self._inner.eof_received()) if self._is_open else False

    # ---- the transport of the connection ----

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - asyncio's
        """As of any transport; `principal` is whom the client's certificate is about."""
        if name != "principal":
            return self._transport.get_extra_info(name, default)
        return default if self._principal is None else self._principal

    def pause_reading(self) -> None:
        """Take nothing more from the socket, and decrypt nothing more: there is no room for it."""
        self._is_paused = True
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Go on, soon: what has come before may not be decrypted yet."""
        self._is_paused = False
        self._transport.resume_reading()
        asyncio.get_running_loop().call_soon(self._take_up)

    def close(self) -> None:
        """Say that this is the end, and hang up."""
        if not self._transport.is_closing():
            with suppress(ssl.SSLError):  # The client has said so itself, or does not listen.
                self._tls.unwrap()
            self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def outlet(
        self, *, on_room: Callable[[], None], on_failure: Callable[[OSError], None]
    ) -> TlsWriter:
        """The way out; see `Outlet`. There is one."""
        self._outlet = TlsWriter(self._raw, self._encrypted, on_room=on_room, on_failure=on_failure)
        return self._outlet

    # ---- a member of the connections, until the handshake is done ----

    def progress(self) -> int | None:
        """See `Member`: the handshake has a time of its own."""
        return None

    def end_idle(self, idle_ms: int) -> None:  # noqa: ARG002 - see above
        """See `Member`."""
        self.abort()

    @property
    def is_half_open(self) -> bool:
        """See `Member`."""
        return True

    def end_half_open(self) -> None:
        """See `Member`."""
        self._is_told = True
        self.abort()

    def stop(self) -> None:
        """The server ends."""
        self.abort()

    def end_slow(self) -> None:
        """See `Member`."""
        self.abort()

    def go_on(self, size_bytes: int) -> None:
        """See `Receiver`: it asks for no memory."""

    def give_back(self) -> int:
        """See `Receiver`."""
        return 0

    def received_bytes(self) -> int | None:
        """See `Receiver`."""
        return None

    # ---- TLS ----

    def _take_up(self) -> None:
        """Do what can be done with the bytes that have come."""
        if self._transport.is_closing():
            return
        try:
            if self._is_open or self._shake_hands():
                self._decrypt()
        except ssl.SSLError as error:
            self._flush()  # The alert that says it to the client.
            self._fail(why(error))
            return
        self._flush()

    def _shake_hands(self) -> bool:
        """Whether it is done."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self._timer.cancel()
        self._flush()
        if not self._listener.has_sasl and not self._is_somebody():
            return False
        self._is_open = True
        self._connections.leave(self)
        self._inner.connection_made(cast("asyncio.Transport", self))
        return True

    def _is_somebody(self) -> bool:
        """Whether there is a name for who has shown a certificate; without one it is nobody."""
        shown = self._tls.getpeercert()
        if shown:
            subject = cast("Subject", shown["subject"])
            self._principal = self._certificates.principal_of(subject)
            if self._principal is None:
                self._fail(
                    "no rule of ssl.principal.mapping.rules has a name for its certificate's"
                    f" subject {distinguished_name(subject)!r}"
                )
                return False
        return True

    def _decrypt(self) -> None:
        while not self._transport.is_closing() and not self._is_paused:
            room = cast("memoryview", self._inner.get_buffer(-1))
            try:
                # What it reads into a buffer it counts, whatever typeshed says.
                size_bytes = cast("int", self._tls.read(len(room), room))
            except ssl.SSLWantReadError:
                return
            except ssl.SSLZeroReturnError:
                size_bytes = 0
            if not size_bytes:
                if not self._inner.eof_received():
                    self.close()
                return
            self._inner.buffer_updated(size_bytes)

    def _encrypted(self, data: Buffer) -> bytes:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self._outgoing.read()

    def _flush(self) -> None:
        """What TLS itself has to say goes out."""
        if self._outgoing.pending:
            self._raw.write([self._outgoing.read()])

    def _on_room(self) -> None:
        if self._outlet is not None:
            self._outlet.go_on()

    def _on_failure(self, error: OSError) -> None:
        if self._outlet is None:
            self.abort()
            return
        self._outlet.close()
        self._outlet.on_failure(error)

    def _on_timeout(self) -> None:
        self._fail(f"it did not shake hands within {HANDSHAKE_TIMEOUT_MS} ms")

    def _fail(self, reason: str) -> None:
        self._tell(reason)
        self._transport.close()

    def _tell(self, reason: str) -> None:
        """Once."""
        self._is_told = True
        what = "TLS" if self._is_open else "the TLS handshake"
        _log.warning("closed the connection of %s: %s failed: %s", self._peer, what, reason)


class TlsWriter:
    """As `Outlet`, with TLS on the way."""

    def __init__(
        self,
        raw: SocketWriter,
        encrypted: Callable[[Buffer], bytes],
        *,
        on_room: Callable[[], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        self.on_failure = on_failure
        self.blocked = False
        """Whether the client has to read before more can leave."""
        self._raw = raw
        self._encrypted = encrypted
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Piece] = deque()
        self._sent_bytes = 0
        """Of the first in the queue."""
        self._closed = False

    @property
    def held_bytes(self) -> int:
        """Memory that waits for the client."""
        return memory_bytes(self._queue) + self._raw.held_bytes

    @property
    def unblockings(self) -> int:
        """How often a client that had to read has read something."""
        return self._raw.unblockings

    def write(self, pieces: Sequence[Piece]) -> None:
        """Send pieces after those that were given before."""
        self._queue += pieces
        if not self.blocked and not self._closed:
            self._send()

    def close(self) -> None:
        """Drop what has not left."""
        self._closed = True
        self._queue.clear()
        self._raw.close()

    def go_on(self) -> None:
        """There is room in the socket, or it is this connection's turn again."""
        if self._closed or not self.blocked:
            return
        self.blocked = False
        self._send()
        if not self.blocked and not self._closed:
            self._on_room()

    def _send(self) -> None:
        turn_bytes = 0
        while self._queue and not self._raw.blocked and not self._closed:
            if turn_bytes >= TURN_BYTES_MAX:
                self._loop.call_soon(self.go_on)
                break
            try:
                chunk = self._chunk()
                self._raw.write([self._encrypted(chunk)])
            except OSError as error:
                self.close()
                self.on_failure(error)
                return
            turn_bytes += len(chunk)
        self.blocked = bool(self._queue) or self._raw.blocked

    def _chunk(self) -> Buffer:
        """What is encrypted next: many small pieces, or a part of a large one."""
        parts: list[Buffer] = []
        room_bytes = CHUNK_BYTES
        while self._queue and room_bytes:
            first = self._queue[0]
            size_bytes = min(len(first) - self._sent_bytes, room_bytes)
            if isinstance(first, FileRange):
                parts.append(first.part(self._sent_bytes, size_bytes).read())
            else:
                end = self._sent_bytes + size_bytes
                parts.append(memoryview(one_buffer(first))[self._sent_bytes : end])
            room_bytes -= size_bytes
            self._sent_bytes += size_bytes
            if self._sent_bytes == len(first):
                self._queue.popleft()
                self._sent_bytes = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


def outlet_of(
    transport: asyncio.Transport,
    *,
    on_room: Callable[[], None],
    on_failure: Callable[[OSError], None],
) -> SocketWriter | TlsWriter:
    """The way out of a connection, with TLS or without."""
    if isinstance(transport, TlsConnection):
        return transport.outlet(on_room=on_room, on_failure=on_failure)
    return SocketWriter(transport, on_room=on_room, on_failure=on_failure)
