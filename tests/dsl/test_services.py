"""Declarations of pages and commands, and refusals with their reasons."""

from __future__ import annotations

from typing import Any

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
