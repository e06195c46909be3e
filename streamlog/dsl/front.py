"""What an app shows of itself: pages of a worker's HTTP server, and commands of its own.

Rule of the file: what is declared here has been checked, and nothing of the web or the command
line is imported: an app without pages needs neither. Who serves them is `worker/web/app_pages`,
who runs commands is `cli/app_commands`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamlog.errors import TopologyError

REQUEST = "request"
"""The parameter of a page that is given the request itself."""
OWN_PATHS = ("live", "ready", "metrics", "tables", "peer")
"""What workers answer themselves begins with one of these."""

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_PATH = re.compile(r"(/[^/{}?#\s]*({\w+(:\w+)?}[^/{}?#\s]*)*)+")
_COMMAND = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class Page:
    """What is answered under a path."""

    path: str
    run: Callable[..., Any]
    wants: frozenset[str]
    """The names of its parameters: of the path, and `request`."""


@dataclass(frozen=True, slots=True)
class Command:
    """A function that can be called from the command line."""

    name: str
    run: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Front:
    """What an app has declared so far."""

    pages: dict[str, Page] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)

    def add_page(self, path: str, fn: Callable[..., Any]) -> None:
        """Answer with what the function returns.

        Raises:
            TopologyError: the path or the function's parameters can't be used.
        """
        if not _PATH.fullmatch(path):
            raise TopologyError(
                f"the path of a page begins with / and has parameters in braces, such as "
                f"/users/{{name}} or /days/{{day:int}}: {path!r}"
            )
        if path.split("/")[1] in OWN_PATHS:
            raise TopologyError(f"workers answer {path!r} themselves: take another path")
        if path in self.pages:
            raise TopologyError(f"there is a page {path!r} already")
        if not inspect.iscoroutinefunction(fn):
            raise TopologyError(f"page {path!r} must be `async def`: it shares the worker's loop")
        wants, given = {*inspect.signature(fn).parameters}, {*_PARAMETER.findall(path)}
        if given - wants or wants - given - {REQUEST}:
            raise TopologyError(
                f"the function of page {path!r} takes ({', '.join(sorted(wants))}), but has to "
                f"take the path's parameters ({', '.join(sorted(given))}), and `request` if it "
                "wants to see the request"
            )
        self.pages[path] = Page(path, fn, frozenset(wants))

    def add_command(self, name: str, fn: Callable[..., Any]) -> None:
        """Call the function for a command of this name.

        Raises:
            TopologyError: the name is taken, or none that can be typed.
        """
        if not _COMMAND.fullmatch(name):
            raise TopologyError(
                f"a command's name is lower-case letters, digits and hyphens, not {name!r}"
            )
        if name in self.commands:
            raise TopologyError(f"there is a command {name!r} already")
        self.commands[name] = Command(name, fn)
