"""Framing: cuts a stream of bytes into messages, for connectors that read sockets and pipes.

A framer is fed with what arrives and returns the messages that are complete. Rule of the module:
what waits in a framer is bounded, whatever is sent; a message over the limit is returned in pieces,
so that none of it is lost.
"""

from __future__ import annotations

from typing import Protocol

from streamlog.errors import CorruptData

MESSAGE_BYTES_MAX = 1024 * 1024
"""The longest line or message."""
COUNT_DIGITS_MAX = 7
"""The most digits of an octet count: a longer one is no count."""


class Framer(Protocol):
    """Cuts what one connection sends."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete.

        Raises:
            CorruptData: the stream has no messages any more.
        """

    def finish(self) -> list[bytes]:
        """Return what is left when the stream has ended."""


class LineFramer:
    r"""Lines that end with \n or \r\n, which is not part of them."""

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that these bytes complete."""
        # The rest is at most one line, so it is copied once for each packet at most.
        *lines, rest = (self._rest + data).split(b"\n")
        found = [piece for line in lines for piece in self._pieces(line.removesuffix(b"\r"))]
        if len(rest) > self._bytes_max:
            *whole, rest = self._pieces(rest)
            found += whole
        self._rest = rest
        return found

    def finish(self) -> list[bytes]:
        """Return the last line if it has no end."""
        rest, self._rest = self._rest, b""
        return self._pieces(rest) if rest else []

    def _pieces(self, line: bytes) -> list[bytes]:
        size = self._bytes_max
        return [line[at : at + size] for at in range(0, len(line), size)] or [b""]


class SyslogFramer:
    """Messages of syslog over TCP (RFC 6587): octet counts, or lines, decided by each message.

    A message that begins with a digit has a count in front ("83 <34>1 ..."); one that begins with
    "<" ends with a line feed.
    """

    def __init__(self, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that these bytes complete.

        Raises:
            CorruptData: a count is no number, or larger than the longest message.
        """
        self._rest += data
        found: list[bytes] = []
        at = 0
        while at < len(self._rest):
            message, end = self._next(at)
            if end == at:
                break
            if message:  # Senders of counted messages may still send a line feed behind each.
                found.append(message)
            at = end
        self._rest = self._rest[at:]
        return found

    def finish(self) -> list[bytes]:
        """Return the last message if it is one without its line feed."""
        rest, self._rest = self._rest, b""
        # A counted message whose end is missing is not the message that was sent.
        is_counted = rest[:1].isdigit()
        return [] if is_counted or not rest else [rest]

    def _next(self, at: int) -> tuple[bytes, int]:
        """Return the message at a byte and its end; the byte itself if it is not complete."""
        if not self._rest[at : at + 1].isdigit():
            return self._line(at)
        # 1048576 has seven digits, and a space follows them.
        space = self._rest.find(b" ", at, at + COUNT_DIGITS_MAX + 1)
        if space < 0:
            if len(self._rest) - at > COUNT_DIGITS_MAX:
                raise CorruptData("a syslog message begins with digits that are no octet count")
            return b"", at
        digits = self._rest[at:space]
        if not digits.isdigit() or int(digits) > self._bytes_max:
            raise CorruptData(
                f"a syslog message has the octet count {digits.decode(errors='replace')}; the "
                f"longest has {self._bytes_max} bytes"
            )
        end = space + 1 + int(digits)
        return (self._rest[space + 1 : end], end) if end <= len(self._rest) else (b"", at)

    def _line(self, at: int) -> tuple[bytes, int]:
        end = self._rest.find(b"\n", at)
        size = (len(self._rest) if end < 0 else end) - at
        if size > self._bytes_max:
            return self._rest[at : at + self._bytes_max], at + self._bytes_max
        if end < 0:
            return b"", at
        return self._rest[at:end].removesuffix(b"\r"), end + 1
