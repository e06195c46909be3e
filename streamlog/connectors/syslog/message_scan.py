"""Message scan: cuts a message of RFC 5424 into its parts, if it is made as nearly all are.

Escapes, elements without parameters, spaces where none belong and everything else that is rare is
left to `syslog_message`, whose expressions say what a message is. What is cut is the same in both.

The rule of the file: it may be compiled, and gives equal results in both builds. No byte is read
behind the end.
"""

from __future__ import annotations

__all__ = ["ScannedMessage", "scan_message"]

_OPEN, _CLOSE, _VERSION, _SPACE, _NIL = b"<>1 -"  # C integers when compiled
_ZERO, _NINE, _BEGIN, _END, _QUOTE, _EQUALS, _BACKSLASH = b'09[]"=\\'
_TAB, _CARRIAGE_RETURN, _DELETE = 9, 13, 127
_PRIORITY_MAX = 191
_DIGITS_MAX = 3
_FIELDS = 5

ScannedMessage = tuple[int, "list[str | None]", dict[str, dict[str, str]], str]
"""Priority; time, host, app, process and kind of message; structured data; text."""


def scan_message(message: bytes) -> ScannedMessage | None:
    """Return the parts of a message; None if it is not of the usual form."""
    data = message  # a pointer when compiled
    size = len(message)
    at, priority = 1, 0
    while at < size and at <= _DIGITS_MAX and _ZERO <= data[at] <= _NINE:
        priority = 10 * priority + data[at] - _ZERO
        at += 1
    if at == 1 or size - at <= _DIGITS_MAX or data[0] != _OPEN or priority > _PRIORITY_MAX:
        return None
    if data[at] != _CLOSE or data[at + 1] != _VERSION or data[at + 2] != _SPACE:
        return None
    at += 3
    fields: list[str | None] = []
    for _ in range(_FIELDS):
        start = at
        while at < size and data[at] != _SPACE and not _TAB <= data[at] <= _CARRIAGE_RETURN:
            at += 1
        if at == start or at >= size or data[at] != _SPACE:
            return None
        is_nil = at - start == 1 and data[start] == _NIL
        fields.append(None if is_nil else _decoded(message, start, at))
        at += 1
    found: dict[str, dict[str, str]] = {}
    at = _scan_data(message, at, found)
    if at < 0 or (at < size and data[at] != _SPACE):
        return None
    return priority, fields, found, _decoded(message, at + 1, size)


def _scan_data(message: bytes, at: int, found: dict[str, dict[str, str]]) -> int:
    """Add structured data to what was found; return where it ends, or -1."""
    data = message
    size = len(message)
    if at < size and data[at] == _NIL:
        return at + 1
    start = at
    while at < size and data[at] == _BEGIN:
        end = _name_end(message, at + 1)
        if end == at + 1 or end >= size or data[end] != _SPACE:
            return -1
        parameters: dict[str, str] = {}
        found[_decoded(message, at + 1, end)] = parameters
        at = _scan_parameters(message, end, parameters)
        if at < 0:
            return -1
    return at if at > start else -1


def _scan_parameters(message: bytes, at: int, found: dict[str, str]) -> int:
    """Add the parameters of an element to what was found; return where it ends, or -1."""
    data = message
    size = len(message)
    while at < size and data[at] == _SPACE:
        start = at + 1
        end = _name_end(message, start)
        if end == start or size - end <= 2 or data[end] != _EQUALS or data[end + 1] != _QUOTE:  # noqa: PLR2004 - = and "
            return -1
        at = end + 2
        value_at = at
        while at < size and data[at] != _QUOTE:
            if data[at] == _BACKSLASH:
                return -1
            at += 1
        if at >= size:
            return -1
        found[_decoded(message, start, end)] = _decoded(message, value_at, at)
        at += 1
    return at + 1 if at < size and data[at] == _END else -1


def _name_end(message: bytes, at: int) -> int:
    """Return where a name ends: at what no name has, or what only `syslog_message` judges."""
    data = message
    size = len(message)
    while at < size and _SPACE < data[at] < _DELETE:
        if data[at] == _EQUALS or data[at] == _QUOTE or data[at] == _END:
            break
        at += 1
    return at


def _decoded(message: bytes, start: int, end: int) -> str:
    data = message
    return data[start:end].decode("utf-8", "replace")
