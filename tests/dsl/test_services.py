"""Declarations of pages and commands, and refusals with their reasons."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import pytest

from streamlog import App
from streamlog.errors import TopologyError


async def plain() -> str:
    return "hello"


async def of_user(name: str, request: Any) -> str:
    return f"{name} {request}"


def test_pages_know_their_parameters() -> None:
    app = App("pages")
    app.page("/")(plain)
    app.page("/users/{name}")(of_user)
    assert [(page.path, page.wants) for page in app.pages] == [
        ("/", frozenset()),
        ("/users/{name}", frozenset({"name", "request"})),
    ]


@pytest.mark.parametrize(
    ("path", "fn", "why"),
    [
        ("hello", plain, "must begin with /"),
        ("/a b", plain, "must begin with /"),
        ("/tables/x", plain, "serve '/tables/x' themselves"),
        ("/users/{name}", plain, "must take the path's parameters \\(name\\)"),
        ("/users/{other}", of_user, "takes \\(name, request\\)"),
        ("/sync", lambda: "x", "must be `async def`"),
    ],
)
def test_an_invalid_page_is_refused(path: str, fn: Any, why: str) -> None:
    with pytest.raises(TopologyError, match=why):
        App("pages").page(path)(fn)


def test_a_scheduled_function_that_can_not_be_called_is_refused_when_it_is_declared() -> None:
    app = App("shop")

    async def other(due: datetime, more: int) -> None:
        raise AssertionError(due, more)

    def sync() -> None:
        raise AssertionError

    for declare in (app.timer("1m"), app.crontab("0 3 * * *")):
        with pytest.raises(TopologyError, match="'sync' must be `async def`"):
            declare(cast("Any", sync))
    with pytest.raises(TopologyError, match=r"'other' must take no arguments, not \(due"):
        app.timer("1m")(cast("Any", other))
    with pytest.raises(TopologyError, match="'other' must take the due time or nothing"):
        app.crontab("0 3 * * *")(cast("Any", other))
    assert not app.timers
    assert not app.crontabs


def test_a_crontab_may_do_without_its_due_time() -> None:
    app = App("shop")
    runs: list[datetime | None] = []

    @app.crontab("0 3 * * *")
    async def nightly() -> None:
        runs.append(None)

    @app.crontab("0 4 * * *")
    async def later(due: datetime) -> None:
        runs.append(due)

    with app.test() as t:
        t.advance("1d")
    assert [due and due.hour for due in runs] == [None, 4]


def test_a_crontab_without_its_due_time_counts_as_a_writer() -> None:
    app = App("shop")
    closed = app.topic("closed", key=str, value=str)

    @app.crontab("0 3 * * *")
    async def nightly() -> None:
        await closed.send("day")

    assert app.program().contract.topics["closed"].written_by == ["nightly"]


def test_page_paths_and_command_names_are_unique() -> None:
    app = App("twice")
    app.page("/x")(plain)
    app.command()(plain)
    app.command("other-name")(plain)
    with pytest.raises(TopologyError, match="already a page '/x'"):
        app.page("/x")(plain)
    with pytest.raises(TopologyError, match="already a command 'plain'"):
        app.command()(plain)
    with pytest.raises(TopologyError, match="digits and hyphens: 'No Name'"):
        app.command("No Name")(plain)
    assert [*app.commands] == ["plain", "other-name"]
