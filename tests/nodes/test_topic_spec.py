"""Names of topics: which are refused, and that the message says why."""

from __future__ import annotations

import pytest

from streamlog import App
from streamlog.errors import TopologyError


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("verkäufe", r"'ä' is not allowed; use 1 to 249 of the characters a-z, A-Z, 0-9"),
        ("my topic/ünf", r"' ', '/', 'ü' is not allowed"),
        ("a" * 250, "use 1 to 249"),
        ("", "use 1 to 249"),
        ("..", "use 1 to 249"),
        ("٣", "is not allowed"),
    ],
)
def test_a_name_that_kafka_refuses_is_refused_with_the_characters(name: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said):
        App("shop").topic(name, key=str, value=str)


def test_an_error_names_a_few_characters_at_most() -> None:
    with pytest.raises(TopologyError, match="'一', '二', '三', '四', '五' is not allowed"):
        App("shop").topic("一二三四五六七", key=str, value=str)
