"""The same line is logged when it comes first, then at most once a minute with a count."""

from __future__ import annotations

import logging

import pytest

from streamlog import repeated
from streamlog.repeated import INTERVAL_S, LINES_MAX, Repeated


def line(at_s: float, text: str, *args: object, level: int = logging.WARNING) -> logging.LogRecord:
    record = logging.LogRecord("a", level, "a.py", 1, text, args, None)
    record.created = at_s
    return record


def told(lines: Repeated, record: logging.LogRecord) -> str | None:
    return record.getMessage() if lines.filter(record) else None


def test_a_line_is_told_first_then_once_a_minute_with_a_count() -> None:
    lines = Repeated()
    found = [told(lines, line(at_s, "%s is full", "disk")) for at_s in range(150)]
    assert {n: text for n, text in enumerate(found) if text is not None} == {
        0: "disk is full",
        60: "disk is full (59 times more since the last line)",
        120: "disk is full (59 times more since the last line)",
    }


def test_what_comes_after_more_than_a_minute_has_no_count() -> None:
    lines = Repeated()
    assert told(lines, line(0, "a")) == told(lines, line(INTERVAL_S, "a")) == "a"


def test_another_line_is_never_left_out() -> None:
    lines = Repeated()
    assert told(lines, line(0, "%s", 1)) == "1"
    assert told(lines, line(0, "%s", 2)) == "2"
    assert told(lines, line(0, "%s", 1, level=logging.ERROR)) == "1"
    failed = line(0, "%s", 1)
    failed.exc_info = (ValueError, ValueError("another"), None)
    assert told(lines, failed) == "1"
    assert [told(lines, line(0, "i", level=logging.INFO)) for _ in range(3)] == ["i"] * 3


def test_a_clock_that_is_set_back_silences_nothing() -> None:
    lines = Repeated()
    assert told(lines, line(10_000, "a")) == told(lines, line(0, "a")) == "a"


def test_it_remembers_so_many_lines() -> None:
    lines = Repeated()
    for number in range(LINES_MAX + 1):
        assert told(lines, line(0, "%s", number))
    assert told(lines, line(1, "0"))
    assert told(lines, line(1, "%s", LINES_MAX)) is None


def test_a_failure_after_it_worked_again_is_new(caplog: pytest.LogCaptureFixture) -> None:
    log = repeated.logger("streamlog.test_repeated")
    assert repeated.logger("streamlog.test_repeated") is log
    for _ in range(3):
        log.warning("it fails")
    assert caplog.messages == ["it fails"]
    repeated.forget("streamlog.test_repeated")
    log.warning("it fails")
    assert caplog.messages == ["it fails"] * 2
