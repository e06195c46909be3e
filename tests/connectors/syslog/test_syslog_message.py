from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connectors.syslog import syslog_message
from streamlog.connectors.syslog.bsd_message_scan import scan_bsd_message
from streamlog.connectors.syslog.message_scan import scan_message
from streamlog.connectors.syslog.syslog_message import (
    SyslogMessage,
    _matched,
    _matched_bsd,
    parse_syslog,
)

NOW = datetime(2026, 1, 1, 0, 30, tzinfo=UTC)


def parse(message: bytes, now: datetime = NOW) -> SyslogMessage:
    return parse_syslog(message, now=now)


def test_the_examples_of_rfc_5424() -> None:
    assert parse(
        b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - "
        b"\xef\xbb\xbf'su root' failed for lonvick on /dev/pts/8"
    ) == SyslogMessage(
        "auth",
        "crit",
        datetime(2003, 10, 11, 22, 14, 15, 3000, tzinfo=UTC),
        "mymachine.example.com",
        "su",
        None,
        "ID47",
        text="'su root' failed for lonvick on /dev/pts/8",
    )
    found = parse(b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time")
    assert (found.facility, found.severity, found.process_id) == ("local4", "notice", "8710")
    assert found.timestamp == datetime(
        2003, 8, 24, 5, 14, 15, 3, tzinfo=timezone(timedelta(hours=-7))
    )
    found = parse(
        b'<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [exampleSDID@32473 iut="3" '
        b'eventSource="Application" eventID="1011"][examplePriority@32473 class="high"]'
    )
    assert found.data == {
        "exampleSDID@32473": {"iut": "3", "eventSource": "Application", "eventID": "1011"},
        "examplePriority@32473": {"class": "high"},
    }
    assert found.text == ""


def test_quoted_values_of_structured_data() -> None:
    found = parse(rb'<13>1 - - - - - [a x="q\"]\\" y=""] text ]')
    assert found.data == {"a": {"x": 'q"]\\', "y": ""}}
    assert found.text == "text ]"
    assert found.timestamp is None
    assert found.host is None


@pytest.mark.parametrize(
    ("message", "app", "process_id", "text"),
    [
        (b"<34>Jan  1 00:14:15 host su: failed", "su", None, "failed"),
        (b"<34>Jan  1 00:14:15 host sshd[42]: Accepted", "sshd", "42", "Accepted"),
        (b"<34>Jan  1 00:14:15 su: no host\n", "su", None, "no host"),
        (b"<34>2026-01-01T00:14:15+00:00 host app: iso", "app", None, "iso"),
    ],
)
def test_messages_of_rfc_3164(message: bytes, app: str, process_id: str | None, text: str) -> None:
    found = parse(message)
    assert (found.facility, found.severity) == ("auth", "crit")
    assert (found.app, found.process_id, found.text) == (app, process_id, text)
    assert found.host == (None if b"no host" in message else "host")
    assert found.timestamp == datetime(2026, 1, 1, 0, 14, 15, tzinfo=UTC)


def test_a_time_without_a_year_is_the_nearest() -> None:
    times = {
        b"Dec 31 23:59:59": datetime(2025, 12, 31, 23, 59, 59, tzinfo=UTC),
        b"Jan  1 00:31:00": datetime(2026, 1, 1, 0, 31, tzinfo=UTC),
        b"Xyz  1 00:31:00": None,
        b"Feb 30 00:31:00": None,
    }
    for text, time in times.items():
        assert parse(b"<1>" + text + b" host a: b").timestamp == time
    late = datetime(2025, 12, 31, 23, 59, tzinfo=UTC)
    assert parse(b"<1>Jan  1 00:00:30 h a: b", late).timestamp == datetime(
        2026, 1, 1, 0, 0, 30, tzinfo=UTC
    )


def test_a_time_without_a_zone_is_of_the_zone_that_is_set() -> None:
    zone = ZoneInfo("Europe/Berlin")
    found = parse_syslog(b"<1>Jan  1 01:00:00 h a: b", now=NOW, zone=zone)
    assert found.timestamp == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("message", [b"no priority", b"<999>1 - - - - - - x", b"", b"<x>y"])
def test_what_is_no_syslog_is_a_text_of_user_notice(message: bytes) -> None:
    found = parse(message)
    assert (found.facility, found.severity, found.text) == ("user", "notice", message.decode())


@given(
    st.binary(max_size=80) | st.from_regex(rb"\A<\d{1,3}>(1 )?[ -~]{0,60}\Z"),
    st.integers(31_536_000, 250_000_000_000).map(lambda s: datetime.fromtimestamp(s, UTC)),
)
def test_every_message_is_carried(message: bytes, now: datetime) -> None:
    found = parse(message, now)
    assert found.timestamp is None or found.timestamp.tzinfo is not None
    assert isinstance(found.text, str)


data_pieces = st.sampled_from(
    [
        "-",
        "[",
        "]",
        "[a ",
        "[b ",
        'x="',
        'y="1"',
        '"',
        " ",
        "] ",
        "][",
        "=",
        "1",
        "\\",
        "\n",
        "\ufeff",
    ]
)
elements = st.builds(
    lambda name, values: f"[{name}" + "".join(f' p{at}="{v}"' for at, v in enumerate(values)) + "]",
    st.sampled_from("ab"),
    st.lists(st.sampled_from(["", "1", "]", "[a", " ", "="]), max_size=3),
)


@given(
    st.one_of(
        st.lists(data_pieces, max_size=12).map("".join),
        st.tuples(st.lists(elements, max_size=3), st.lists(data_pieces, max_size=4)).map(
            lambda both: "".join(both[0]) + "".join(both[1])
        ),
    )
)
def test_the_usual_messages_are_read_as_any_other(rest: str) -> None:
    for head in ("<13>1 - - - - - ", "<191>1 2026 host\x1cäh app\u2028 7 id "):
        message = (head + rest).encode()
        found = scan_message(message)
        assert found is None or found == _matched(message)


PLAIN_HEADER = re.compile(r"<(\d{1,3})>1 (\S+) (\S+) (\S+) (\S+) (\S+) ", re.ASCII)
PLAIN_DATA = re.compile(r'(-|(?:\[(?:[^\]"]|"(?:[^"\\]|\\.)*")*\])+)(?: (.*))?', re.DOTALL)
PLAIN_ELEMENT = re.compile(r'\[([^\s\]"=]+)((?: [^\s\]"=]+="(?:[^"\\]|\\.)*")*)\s*\]')
PLAIN_PARAMETER = re.compile(r' ([^\s\]"=]+)="((?:[^"\\]|\\.)*)"')


def plain(text: str) -> object:
    """Read a message step by step, by expressions that are plain and slow."""
    header = PLAIN_HEADER.match(text)
    found = header and PLAIN_DATA.fullmatch(text[header.end() :])
    if header is None or found is None or int(header[1]) > 191:
        return None
    data = {
        element[1]: {
            name: re.sub(r'\\(["\\\]])', r"\1", value)
            for name, value in PLAIN_PARAMETER.findall(element[2])
        }
        for element in PLAIN_ELEMENT.finditer("" if found[1] == "-" else found[1])
    }
    fields = [None if each == "-" else each for each in header.groups()[1:]]
    return int(header[1]), fields, data, found[2] or ""


@given(
    st.sampled_from(
        ["<13>1 - - - - - ", "<191>1 2026 host app 7 id ", "<192>1 - - - - - ", "<13>"]
    ),
    st.lists(
        data_pieces | elements | st.sampled_from(['\\"', "\\\\", "\\]", '[a x="\\"]"]', "\\\n"]),
        max_size=8,
    ).map("".join),
)
def test_messages_are_read_as_step_by_step(head: str, rest: str) -> None:
    assert _matched((head + rest).encode()) == plain(head + rest)


@pytest.mark.parametrize(
    "message",
    [
        b'<13>1 - host app - - [a x="1"] text',
        b'<13>1 - host app - - [a x="\\"1"] text',
        b"<13>Jan  1 00:14:15 host app[7]: text",
        b"<13>1 no syslog of 2009",
        b"none",
    ],
)
def test_a_scan_is_compiled_or_passed_over(message: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ("_IS_COMPILED", "_IS_BSD_COMPILED"):
        monkeypatch.setattr(syslog_message, flag, True)
    found = parse(message)
    for flag, scan in (("_IS_COMPILED", "scan_message"), ("_IS_BSD_COMPILED", "scan_bsd_message")):
        monkeypatch.setattr(syslog_message, flag, False)
        monkeypatch.setattr(syslog_message, scan, None)
    assert parse(message) == found


bsd_pieces = st.sampled_from([
    *("Jan  1 00:14:15", "Oct 11 22:14:15", "Xyz 99 99:99:99", "Oct 11 22:14:1", "oct 11 22:14:15"),
    *("2026-01-02T03:04:05Z", "2026-01-02T", "2026-01-02 03:04:05", "2026-1-02T3"),
    *("host", "app", "app[7]", "[7]", "[", "]", "[[", ":", ": ", " ", "  ", "\t", "\n", "<", ">"),
    *("a" * 47, "a" * 48, "a" * 49, "1", "1 ", "\x1c", "\x85", "\u00e4", "\u2028", "\ud800", "\0"),
])  # fmt: skip


@given(
    st.sampled_from(
        ["<13>", "<191>", "<192>", "<1>", "<>", "<0013>", "<013>", "<13", "13>", "<a>", "", "<1>1"]
    ),
    st.lists(bsd_pieces, max_size=10).map("".join),
    st.integers(0, 20),
)
def test_messages_of_rfc_3164_are_scanned_as_they_are_matched(
    head: str, rest: str, cut: int
) -> None:
    message = (head + rest).encode(errors="surrogatepass")
    for each in (message, message[: len(message) - cut], message[:cut]):
        scanned, matched = scan_bsd_message(each), _matched_bsd(each)
        # Of RFC 5424 by its version: whether it is, the expressions tell first.
        assert scanned == (None if re.match(rb"<\d+>1 ", each) else matched)


@given(
    st.sampled_from(["Jan  1 00:14:15", "2026-01-02T03:04:05Z", None]),
    st.sampled_from(["web-1", "10.0.0.1", "fe80::1", None]),
    st.sampled_from(["su", "postfix/smtpd", "%ASA-6-302013", "CRON"]),
    st.sampled_from(["7", "x-1", None]),
    st.text("abc :[]<>=\u00e4", max_size=12).filter(lambda text: not text.startswith(" ")),
)
def test_parts_of_rfc_3164_are_found_again(
    time: str | None, host: str | None, app: str, process: str | None, text: str
) -> None:
    host = host if time else None
    before = "".join(f"{each} " for each in (time, host) if each is not None)
    message = f"<34>{before}{app}{f'[{process}]' if process else ''}: {text}".encode()
    assert scan_bsd_message(message) == (34, time, host, app, process, text)


HEADS = st.lists(
    st.sampled_from(
        [*"<>0710 -aä\t\x0b\x1c\u2028", "191", "192", "0013", "\ud800"],
    ),
    max_size=16,
).map("".join)


@given(HEADS, st.sampled_from(["- text", "-", '[a x="1"]', ""]), st.integers(0, 60))
def test_heads_are_read_as_any_other(head: str, rest: str, cut: int) -> None:
    for start in ("", "<13>", "<13>1 ", "<13>1 - - - - "):
        message = f"{start}{head} {rest}".encode(errors="surrogatepass")
        for each in (message, message[:cut]):
            found = scan_message(each)
            assert found is None or found == _matched(each)


@pytest.mark.parametrize(
    ("rest", "data", "text"),
    [
        ('[a x="1"][b y="]" z=""] text "quoted"', {"a": {"x": "1"}, "b": {"y": "]", "z": ""}},
         'text "quoted"'),
        ('[a x="1"]', {"a": {"x": "1"}}, ""),
        ("- text\\", {}, "text\\"),
        ("-", {}, ""),
        ('[a x="\u00e4"] \u00e4', {"a": {"x": "\u00e4"}}, "\u00e4"),
    ],
)  # fmt: skip
def test_the_usual_messages_are_scanned(
    rest: str, data: dict[str, dict[str, str]], text: str
) -> None:
    found = scan_message(b"<165>1 2026 host - 8710 ID47 " + rest.encode())
    assert found == (165, ["2026", "host", None, "8710", "ID47"], data, text)
