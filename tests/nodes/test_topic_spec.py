"""Refused topic names, and the reasons in their messages."""

from __future__ import annotations

import pytest

from streamlog import App
from streamlog.errors import TopologyError


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("verkäufe", r"'ä' is not allowed; use 1 to 249 of the characters a-z, A-Z, 0-9"),
        ("my topic/ünf", r"' ', '/', 'ü' is not allowed"),
        ("a" * 250, "use 1 to 249"),
        ("", "use 1 to 249"),
        ("..", "use 1 to 249"),
        ("٣", "is not allowed"),
    ],
)
def test_a_topic_name_that_kafka_refuses_is_refused(name: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        App("shop").topic(name, key=str, value=str)


def test_an_error_names_at_most_five_characters() -> None:
    with pytest.raises(TopologyError, match="'一', '二', '三', '四', '五' is not allowed"):
        App("shop").topic("一二三四五六七", key=str, value=str)
