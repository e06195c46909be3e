"""Notices of a link: told once, shown while they stand, and no more of them than one reads."""

from __future__ import annotations

import pytest

from streamlog.broker.mirroring.link_notices import NOTICES_SHOWN, LinkNotices, listed


def test_a_notice_is_logged_when_it_comes_and_when_it_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    notices = LinkNotices("link east")
    for notice in ("b is taken", "b is taken", "", ""):
        notices.note("b", notice)
    assert [each.getMessage() for each in caplog.records] == [
        "link east: b is taken",
        "link east: not any more: b is taken",
    ]
    assert notices.shown == []


def test_only_some_of_many_notices_are_shown() -> None:
    notices = LinkNotices("link east")
    for number in range(NOTICES_SHOWN + 7):
        notices.note(number, f"{number} is taken")
    assert len(notices.shown) == NOTICES_SHOWN + 1
    assert notices.shown[-1] == "and 7 notices more"
    notices.keep({3})
    assert notices.shown == ["3 is taken"]


def test_names_are_sorted_and_cut_short() -> None:
    assert listed("hgfedcba") == "a, b, c, d, e and 3 more"
    assert listed("ba") == "a, b"
