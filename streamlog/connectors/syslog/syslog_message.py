"""Parser of syslog messages: RFC 5424, and RFC 3164 as it is found in the wild.

Rule of the module: every message is carried. One that is neither has facility user and severity
notice, and all of it is its text, as RFC 3164 (4.3.3) asks of a relay.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from types import FunctionType

import msgspec

from streamlog.connectors.syslog.bsd_message_scan import ScannedBsdMessage, scan_bsd_message
from streamlog.connectors.syslog.message_scan import ScannedMessage, scan_message

FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron"),
    *("authpriv", "ftp", "ntp", "audit", "alert", "clock"),
    *(f"local{number}" for number in range(8)),
)
SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
PRIORITIES = [(facility, severity) for facility in FACILITIES for severity in SEVERITIES]
USER_NOTICE = 13

_MARK_5424 = b">1 "
_MARK_5424_END = 7
"""The end of the mark behind the longest priority, or further."""
# Possessive: what does not match is refused in one pass, however it is made.
_QUOTED = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_RFC_5424 = re.compile(
    r"<(\d{1,3})>1 (\S++) (\S++) (\S++) (\S++) (\S++) "
    rf'(-|(?:\[[^\]"]*+(?:{_QUOTED}[^\]"]*+)*+\])++)(?: (.*))?',
    re.ASCII | re.DOTALL,
)
_IS_COMPILED = not isinstance(scan_message, FunctionType)
_IS_BSD_COMPILED = not isinstance(scan_bsd_message, FunctionType)
"""Interpreted, a scan takes longer than the expressions, which find equal parts."""
# Everything but the priority is optional: devices leave out the time, the host, or both.
_RFC_3164 = re.compile(
    rb"<(\d{1,3})>"
    rb"(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\dT\S+) (?:(\S+?)(?<!:) )?)?"
    rb"(?:([^\s:\[\]<>]{1,48})(?:\[([^\]\s]{1,48})\])?: ?)?(.*)",
    re.DOTALL,
)
_ELEMENT = re.compile(rf'\[([^\s\]"=]++)((?: [^\s\]"=]++={_QUOTED})*+)\s*+\]')
_PARAMETER = re.compile(r' ([^\s\]"=]++)="([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_ESCAPED = re.compile(r'\\(["\\\]])')
_BYTE_ORDER_MARK = "\ufeff"
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HALF_YEAR = timedelta(days=183)


class SyslogMessage(msgspec.Struct, frozen=True):
    """A message of syslog.

    Attributes:
        facility: "kern", "user", "mail", ..., "local7".
        severity: "emerg", "alert", "crit", "err", "warning", "notice", "info" or "debug".
        timestamp: when it was written, by the sender's clock; None if it does not say.
        host: the sender by its own name; None if it does not say.
        app: the program; the tag of RFC 3164.
        process_id: the process.
        message_id: the kind of message (RFC 5424).
        data: the structured data (RFC 5424): names and texts, by element.
        text: the message.
    """

    facility: str
    severity: str
    timestamp: datetime | None = None
    host: str | None = None
    app: str | None = None
    process_id: str | None = None
    message_id: str | None = None
    data: Mapping[str, Mapping[str, str]] = {}
    text: str = ""


def parse_syslog(message: bytes, *, now: datetime, zone: tzinfo = UTC) -> SyslogMessage:
    """Return a message as its parts.

    Args:
        message: one message, without its frame.
        now: the time of its arrival, which gives RFC 3164's times their year.
        zone: the time zone of times without one (RFC 3164).
    """
    if _IS_COMPILED and (usual := scan_message(message)) is not None:
        return _message_5424(*usual)
    if _IS_BSD_COMPILED and (scanned := scan_bsd_message(message)) is not None:
        return _message_3164(scanned, now, zone)
    # RFC 5424 first: its version "1" would be the tag of a message of RFC 3164.
    if _MARK_5424 in message[:_MARK_5424_END] and (rare := _matched(message)) is not None:
        return _message_5424(*rare)
    if (matched := _matched_bsd(message)) is not None:
        return _message_3164(matched, now, zone)
    facility, severity = PRIORITIES[USER_NOTICE]
    return SyslogMessage(facility, severity, text=_text(message).rstrip("\n"))


def _matched(message: bytes) -> ScannedMessage | None:
    """Return the parts of a message of RFC 5424, however it is made; None if it is none."""
    found = _RFC_5424.fullmatch(_text(message))
    if found is None or (priority := int(found[1])) >= len(PRIORITIES):
        return None
    *fields, data, text = found.groups()[1:]
    named = [None if field == "-" else field for field in fields]
    return priority, named, {} if data == "-" else _elements(data), text or ""


def _matched_bsd(message: bytes) -> ScannedBsdMessage | None:
    """Return the parts of a message of RFC 3164; None if it has no priority."""
    found = _RFC_3164.fullmatch(message)
    if found is None or (priority := int(found[1])) >= len(PRIORITIES):
        return None
    _, *fields, text = found.groups()
    time, host, app, process_id = (None if each is None else _text(each) for each in fields)
    return priority, time, host, app, process_id, _text(text)


def _message_5424(
    priority: int, fields: list[str | None], data: dict[str, dict[str, str]], text: str
) -> SyslogMessage:
    time, host, app, process_id, message_id = fields
    facility, severity = PRIORITIES[priority]
    return SyslogMessage(
        facility,
        severity,
        None if time is None else _iso_time(time, UTC),
        host,
        app,
        process_id,
        message_id,
        data,
        text.removeprefix(_BYTE_ORDER_MARK).rstrip("\n"),
    )


def _message_3164(scanned: ScannedBsdMessage, now: datetime, zone: tzinfo) -> SyslogMessage:
    priority, time, host, app, process_id, text = scanned
    facility, severity = PRIORITIES[priority]
    moment = None
    if time is not None:
        is_iso = time[0].isdigit()
        moment = _iso_time(time, zone) if is_iso else _short_time(time, now.date(), zone)
    return SyslogMessage(facility, severity, moment, host, app, process_id, text=text.rstrip("\n"))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _iso_time(text: str, zone: tzinfo) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=zone)


@lru_cache(maxsize=1_024)
def _short_time(text: str, today: date, zone: tzinfo) -> datetime | None:
    """Return a time without a year, in the year in which it is nearest to today.

    A message of December 31 that arrives on January 1 is a day old, not 364 days early. Many
    messages have the same second, so results are kept.
    """
    month, day, clock = text.split()
    hour, minute, second = map(int, clock.split(":"))
    for year in (today.year, today.year - 1, today.year + 1):
        try:
            number = _MONTHS.index(month) + 1
            found = datetime(year, number, int(day), hour, minute, second, tzinfo=zone)
        except ValueError:
            continue  # No month, no such day, or February 29 in another year.
        if abs(found.date() - today) <= _HALF_YEAR:
            return found
    return None


def _elements(text: str) -> dict[str, dict[str, str]]:
    found = {
        name: dict(_PARAMETER.findall(parameters)) for name, parameters in _ELEMENT.findall(text)
    }
    if "\\" not in text:  # As nearly always.
        return found
    return {
        name: {each: _ESCAPED.sub(r"\1", value) for each, value in parameters.items()}
        for name, parameters in found.items()
    }
