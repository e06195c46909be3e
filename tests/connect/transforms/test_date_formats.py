"""Patterns of Java's SimpleDateFormat: text to time and back."""

from __future__ import annotations

import pytest
from hypothesis import given
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
    assert form.milliseconds(form.text(ms)) == ms


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
    ],
)
def test_text_is_read_leniently_as_java_does(pattern: str, text: str, ms: int) -> None:
    assert DateFormat(pattern).milliseconds(text) == ms


def test_a_text_that_does_not_match_is_a_bad_record() -> None:
    with pytest.raises(BadRecord, match="does not match pattern"):
        DateFormat("yyyy-MM-dd").milliseconds("yesterday")
    with pytest.raises(BadRecord, match="1 to 9999"):
        DateFormat("yyyy").milliseconds("12345")


@pytest.mark.parametrize("pattern", ["yyyy-bb", "yyyy 'open"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="format"):
        DateFormat(pattern)
