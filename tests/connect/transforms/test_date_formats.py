"""Patterns of Java's SimpleDateFormat: text to time and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import BadRecord
from streamlog.connect.transforms.date_formats import DateFormat
from streamlog.errors import ConfigError

WHOLE = (
    "yyyy-MM-dd'T'HH:mm:ss.SSSX",
    "yyyyMMddHHmmssSSS",
    "EEE, d MMM yyyy hh:mm:ss.SSS a Z",
    "D yyyy kk:m:s.S",
)


@given(st.integers(-(10**12), 10**13), st.sampled_from(WHOLE))
def test_a_pattern_with_every_field_reads_what_it_writes(ms: int, pattern: str) -> None:
    form = DateFormat(pattern)
    assert form.milliseconds(form.text(ms), 2026) == ms


STRFTIME = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "LL": "%m", "MMM": "%b", "MMMM": "%B", "LLLL": "%B",
    "dd": "%d", "DDD": "%j", "HH": "%H", "hh": "%I", "mm": "%M", "ss": "%S", "a": "%p",
    "EE": "%a", "EEE": "%a", "EEEE": "%A", "u": "%u", "Z": "%z", "zzz": "%Z",
}  # fmt: skip
"""Letters of Java with those of C's strftime that mean as much."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENTS = st.integers(-30_000_000_000_000, 253_000_000_000_000).map(
    lambda ms: EPOCH + timedelta(milliseconds=ms)
)


def ms_of(when: datetime) -> int:
    return (when - EPOCH) // timedelta(milliseconds=1)


@given(MOMENTS)
@example(datetime(2024, 1, 7, tzinfo=UTC))
@example(datetime(2024, 12, 31, 12, 59, 59, 999_000, tzinfo=UTC))
def test_letters_mean_what_strftime_has_for_them(when: datetime) -> None:
    for ours, theirs in STRFTIME.items():
        assert DateFormat(ours).text(ms_of(when)) == when.strftime(theirs), ours
    assert DateFormat("SSS").text(ms_of(when)) == when.strftime("%f")[:3]
    # Hours that begin at 1 or end with 11, which strftime has not: midnight is 24 and 0.
    assert DateFormat("kk K").text(ms_of(when)) == f"{when.hour or 24:02} {when.hour % 12}"
    numbers = (when.month, when.day, when.hour, when.minute, when.second, when.year)
    assert DateFormat("M d H m s y").text(ms_of(when)) == " ".join(map(str, numbers))


@given(MOMENTS, st.sampled_from(["d MMMM yyyy HH:mm:ss", "yyyy DDD hh a:mm:ss", "dMMMkkyyyymmss"]))
def test_text_is_read_in_any_case(when: datetime, pattern: str) -> None:
    form = DateFormat(pattern)
    text, whole_ms = form.text(ms_of(when)), ms_of(when.replace(microsecond=0))
    assert form.milliseconds(text, 2026) == form.milliseconds(text.swapcase(), 2026) == whole_ms


@given(st.integers(0, 99), st.integers(1_000, 9_900))
def test_a_year_of_two_digits_is_one_from_80_years_before_on(year: int, now_year: int) -> None:
    form = DateFormat("yy")
    found = (EPOCH + timedelta(milliseconds=form.milliseconds(f"{year:02}", now_year))).year
    assert found in range(now_year - 80, now_year + 20)
    assert found % 100 == year
    # Any other number of digits is the year itself.
    for text in (f"{year + 1}00", f"0{year + 1}0"):
        assert form.milliseconds(text, now_year) == DateFormat("yyyy").milliseconds(text, 2026)


@pytest.mark.parametrize(
    ("letter", "zone", "minutes"),
    [
        *(("X", "Z", 0), ("X", "+02", 120), ("XX", "-0330", -210), ("XXX", "+05:45", 345)),
        *(("Z", "UTC", 0), ("Z", "-0330", -210), ("z", "GMT", 0), ("z", "GMT+01:30", 90)),
        *(("z", "gmt-3:30", -210), ("Z", "+0000", 0)),
    ],
)
def test_a_zone_is_taken_off_the_time(letter: str, zone: str, minutes: int) -> None:
    found = DateFormat(f"HH:mm {letter}").milliseconds(f"20:00 {zone}", 2026)
    assert found == (20 * 60 - minutes) * 60_000


def test_numbers_side_by_side_have_as_many_digits_as_letters() -> None:
    assert DateFormat("yyyyMMdd").milliseconds("19700203", 2026) == 33 * 86_400_000
    # The last one takes all that there are; a name ends a number before it.
    assert DateFormat("ddHHSSS").milliseconds("01051234567", 2026) == 5 * 3_600_000 + 1_234_567
    assert DateFormat("dMMM").milliseconds("3feb", 2026) == 33 * 86_400_000
    assert DateFormat("MMMd").milliseconds("March33", 2026) == (31 + 28 + 32) * 86_400_000
    assert DateFormat("sS").milliseconds("5123", 2026) == 5_123


@pytest.mark.parametrize(
    ("pattern", "text", "ms"),
    [
        ("yyyy-MM-dd", "1970-13-01", 365 * 86_400_000),
        ("yyyy-MM-dd", "1970-01-02 and more", 86_400_000),
        ("HH:mm", "25:61", 86_400_000 + 7_260_000),
        ("dd/MM/yy", "02/01/70", 86_400_000),
        ("HH:mm X", "01:00 +02", -3_600_000),
        ("'at' HH", "at 1", 3_600_000),
        ("h a", "12 AM", 0),
        ("MMMM d", "january 2", 86_400_000),
        ("yyyy-MM-dd", "1972-00-01", 699 * 86_400_000),
        ("yyyy-MM-dd", "1970-02-31", 61 * 86_400_000),
        ("yyyy DDD MM", "1970 33 05", 32 * 86_400_000),
        ("k", "24", 0),
        ("h a", "12 PM", 12 * 3_600_000),
        ("K a", "11 pm", 23 * 3_600_000),
        ("hh:mm", "13:45", 825 * 60_000),
        ("h a", "13 PM", 25 * 3_600_000),
        ("K a", "12 PM", 24 * 3_600_000),
        ("kk:mm", "24:30", 30 * 60_000),
        ("k", "25", 25 * 3_600_000),
        ("H h a", "5 11 PM", 23 * 3_600_000),
        ("d d", "5 2", 86_400_000),
        ("EEE d", "Sun 2", 86_400_000),
        ("''d''''", "'2''", 86_400_000),
        ("mm:ss.S", "1:2.3", 62_003),
    ],
)
def test_text_is_read_leniently_as_java_does(pattern: str, text: str, ms: int) -> None:
    assert DateFormat(pattern).milliseconds(text, 2026) == ms


def test_a_text_that_does_not_match_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="does not match pattern"):
        DateFormat("yyyy-MM-dd").milliseconds("yesterday", 2026)
    for year in ("12345", "0000", "9" * 19):
        with pytest.raises(BadRecord, match="1 to 9999"):
            DateFormat("yyyy").milliseconds(year, 2026)
    with pytest.raises(BadRecord) as refused:
        DateFormat("yyyy").milliseconds("x" * 1_000, 2026)
    assert len(str(refused.value)) < 200, "a log line repeats the beginning alone"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [("yyyy-bb", "Illegal pattern character 'b'"), ("yyyy 'open", "Unterminated quote")],
)
def test_a_malformed_pattern_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"^format .*: {why}"):
        DateFormat(pattern)
