"""A repeated log line is logged at first, and then at most once a minute with a count."""

from __future__ import annotations

import logging

import pytest

from streamlog import repeated
from streamlog.repeated import INTERVAL_S, LINES_MAX, Repeated


def line(at_s: float, text: str, *args: object, level: int = logging.WARNING) -> logging.LogRecord:
    record = logging.LogRecord("a", level, "a.py", 1, text, args, None)
    record.created = at_s
    return record


def log_line(lines: Repeated, record: logging.LogRecord) -> str | None:
    return record.getMessage() if lines.filter(record) else None


def test_a_line_is_logged_at_first_and_then_once_a_minute_with_a_count() -> None:
    lines = Repeated()
    found = [log_line(lines, line(at_s, "%s is full", "disk")) for at_s in range(150)]
    assert {n: text for n, text in enumerate(found) if text is not None} == {
        0: "disk is full",
        60: "disk is full (repeated 59 times since the last line)",
        120: "disk is full (repeated 59 times since the last line)",
    }


def test_a_line_after_more_than_a_minute_has_no_count() -> None:
    lines = Repeated()
    assert log_line(lines, line(0, "a")) == log_line(lines, line(INTERVAL_S, "a")) == "a"


def test_a_different_line_is_never_suppressed() -> None:
    lines = Repeated()
    assert log_line(lines, line(0, "%s", 1)) == "1"
    assert log_line(lines, line(0, "%s", 2)) == "2"
    assert log_line(lines, line(0, "%s", 1, level=logging.ERROR)) == "1"
    failed = line(0, "%s", 1)
    failed.exc_info = (ValueError, ValueError("another"), None)
    assert log_line(lines, failed) == "1"
    assert [log_line(lines, line(0, "i", level=logging.INFO)) for _ in range(3)] == ["i"] * 3


def test_a_clock_that_is_set_back_suppresses_nothing() -> None:
    lines = Repeated()
    assert log_line(lines, line(10_000, "a")) == log_line(lines, line(0, "a")) == "a"


def test_the_number_of_remembered_lines_is_bounded() -> None:
    lines = Repeated()
    for number in range(LINES_MAX + 1):
        assert log_line(lines, line(0, "%s", number))
    assert log_line(lines, line(1, "0"))
    assert log_line(lines, line(1, "%s", LINES_MAX)) is None


def test_a_failure_after_a_recovery_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    log = repeated.logger("streamlog.test_repeated")
    assert repeated.logger("streamlog.test_repeated") is log
    for _ in range(3):
        log.warning("it fails")
    assert caplog.messages == ["it fails"]
    repeated.forget("streamlog.test_repeated")
    log.warning("it fails")
    assert caplog.messages == ["it fails"] * 2
