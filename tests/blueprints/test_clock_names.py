"""Clock names: stable across processes, and different if the timestamp function differs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamlog import App, tumbling
from streamlog.blueprints.clock_names import clock_name, partners
from streamlog.records.control_batches import group_of

PROGRAM = """
from streamlog import App
from streamlog.blueprints.clock_names import clock_name
app = App("shop")
words = app.topic("words", key=str, value=dict,
                  timestamp=lambda v: v["at"] if v["kind"] in {"a", "b", "c"} else v["then"])
app.stream(words).to(app.topic("out", key=str, value=dict))
print(clock_name("shop", app.topology().topics["words"]))
"""


def name_of(timestamp: Callable[[Any], Any] | None) -> str:
    app = App("shop")
    words = app.topic("words", key=str, value=dict[str, int], timestamp=timestamp)
    app.stream(words).to(app.topic("out", key=str, value=dict[str, int]))
    return clock_name("shop", app.topology().topics["words"])


def field(name: str) -> Callable[[dict[str, int]], int]:
    return lambda value: value[name]


def read_field(name: str, value: dict[str, int]) -> int:
    return value[name]


def test_a_clock_name_is_equal_in_all_processes() -> None:
    made = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(made) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (None, lambda v: v["at"]),
        (lambda v: v["at"], lambda v: v["then"]),
        (lambda v: v["at"], lambda v: v["at"] + 1),
        (field("at"), field("then")),
        (partial(read_field, "at"), partial(read_field, "then")),
    ],
)
def test_a_different_timestamp_function_is_another_clock(
    first: Callable[[Any], Any] | None, second: Callable[[Any], Any]
) -> None:
    assert name_of(first) != name_of(second)


def test_equal_code_gives_equal_clocks_of_the_app_s_group() -> None:
    assert name_of(field("at")) == name_of(field("at"))
    assert group_of(name_of(field("at"))) == "shop"


def test_topics_that_meet_in_a_node_are_partners() -> None:
    app = App("shop")
    first, second_topic, third_topic = (
        app.topic(name, key=str, value=str) for name in ("one", "two", "three")
    )
    merged = app.stream(first).merge(app.stream(second_topic))
    merged.group_by(lambda _, v: v, name="by").windowed(tumbling("1m")).count(name="c")
    app.stream(third_topic).group_by_key().count(name="d")
    assert partners(app.topology()) == {
        "one": {"one", "two"},
        "two": {"one", "two"},
        "three": {"three"},
    }
