"""Functions without known types: results that can't be stored are refused with the location."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from streamlog import App, agg, tumbling
from streamlog.dsl.value_types import return_shape, source_location
from streamlog.errors import ProcessingError, TopologyError

if TYPE_CHECKING:
    from decimal import Decimal


class Color(Enum):
    RED = 1


@dataclass
class Click:
    user: str
    url: str


@dataclass
class Visit:
    clicks: int


class Model(BaseModel):
    n: int


def visit_of(click: Click) -> Visit:
    return Visit(len(click.url))


def unresolved(click: Click) -> Decimal:
    raise NotImplementedError(click)


def of_unresolved(number: Decimal) -> int:
    return int(number)


def line() -> int:
    """Return the line number of the caller."""
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize(
    "case", ["Visit(3)", "visit_of(v)", "(v.user, (v, 1))", "[v]", "Model(n=1)"]
)
def test_a_lambda_with_an_unstorable_result_is_named(case: str) -> None:
    lambdas: dict[str, tuple[Callable[[Click], Any], str, int]] = {
        "Visit(3)": (lambda _: Visit(3), "returns values of type Visit", line()),
        "visit_of(v)": (lambda v: visit_of(v), "returns values of type Visit", line()),  # noqa: PLW0108
        "(v.user, (v, 1))": (lambda v: (v.user, (v, 1)), "returns values of type Click", line()),
        "[v]": (lambda v: [v], "returns values of type Click inside list", line()),
        "Model(n=1)": (lambda _: Model(n=1), "returns values of type Model", line()),
    }
    fn, message, number = lambdas[case]
    app = App("t")
    stream = app.stream(app.topic("clicks", key=str, value=Click)).map_values(fn)
    with pytest.raises(TopologyError, match=rf"the lambda at test_makers.py:{number} {message}"):
        stream.group_by(lambda k, _: k, name="by").count(name="it")


def test_the_error_names_the_lambda_before_the_failing_operator() -> None:
    app = App("t")
    clicks = app.topic("clicks", key=str, value=Click)
    users = app.table(app.topic("users", key=str, value=str))
    windows = app.stream(clicks).group_by_key().windowed(tumbling("1h"))
    sessions = windows.agg(Visit, name="sessions", clicks=agg.count())
    named = sessions.changes().map(lambda w, v: (w.key, (v, w.start)), name="named")
    number = line() - 1
    with pytest.raises(
        TopologyError, match=f"test_makers.py:{number} returns values of type Visit inside"
    ):
        named.left_join(users, lambda pair, user: f"{pair} {user}", name="joined")


def test_plain_values_from_lambdas_are_stored() -> None:
    app = App("t")
    clicks = app.topic("clicks", key=str, value=Click, partitions=1)
    stream = app.stream(clicks).map_values(lambda v: (v.user, len(v.url), {"url": v.url}))
    table = stream.group_by(lambda _, v: v[0], name="by").reduce(lambda _, v: v, name="it")
    with app.test() as t:
        t.input(clicks).send(Click("ann", "/a"), key="k")
        assert dict(t.table(table)) == {"ann": ("ann", 2, {"url": "/a"})}


def test_a_value_that_is_never_stored_may_have_any_type() -> None:
    app = App("t")
    clicks = app.topic("clicks", key=str, value=Click, partitions=1)
    visits = app.topic("visits", key=str, value=Visit)
    app.stream(clicks).map_values(lambda v: (v, 1)).map_values(lambda p: Visit(p[1])).to(visits)
    with app.test() as t:
        t.input(clicks).send(Click("ann", "/a"), key="k")
        assert t.output(visits).values == [Visit(1)]


def test_an_annotation_that_only_a_type_checker_can_resolve_is_refused() -> None:
    app = App("t")
    stream = app.stream(app.topic("clicks", key=str, value=Click)).map_values(unresolved)
    with pytest.raises(TopologyError, match=r"'unresolved' at test_makers.py:\d+ .*'Decimal'"):
        stream.group_by(lambda k, _: k, name="by").count(name="it")
    # Its return type is known, although its parameter type is not.
    assert return_shape(of_unresolved).declared is int


def test_an_unstorable_value_found_at_run_time_names_its_function() -> None:
    app = App("t")
    clicks = app.topic("clicks", key=str, value=Click, partitions=1)
    stream = app.stream(clicks).map_values(lambda v: vars(v) and Color.RED)
    number = line() - 1
    stream.group_by_key().agg(Counted, name="it", n=agg.count())
    stream.to_table(name="rows")
    with pytest.raises(
        ProcessingError, match=f"of type Color .* the lambda at test_makers.py:{number}"
    ):
        send(app, clicks)


@dataclass
class Counted:
    n: int


def send(app: App, clicks: Any) -> None:
    with app.test() as t:
        t.input(clicks).send(Click("ann", "/a"), key="k")


def test_a_source_location_names_function_file_and_line() -> None:
    assert source_location(visit_of).startswith("the function 'visit_of' at test_makers.py:")
    assert source_location(int) == "the function 'int'"
