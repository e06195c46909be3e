"""Services: functions of an app that no record calls: schedules, tasks, web pages and commands.

Rule: this module declares and checks. It imports no web server and no command line, so an app
without pages needs neither. Workers, the test driver and the command line call the functions.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar, cast

from streamlog.crontab import cron_times
from streamlog.dsl.schedules import Clockwork, Crontab, Service, Timer
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError, TopologyError
from streamlog.serdes.erased_types import UserFunction

REQUEST = "request"
"""The name of the parameter for which a page gets the request itself."""
OWN_PATHS = ("live", "ready", "metrics", "tables", "peer", "hot-keys", "console")
"""The first parts of paths that workers answer themselves."""

_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_PATH = re.compile(r"(/[^/{}?#\s]*({\w+(:\w+)?}[^/{}?#\s]*)*)+")
_COMMAND = re.compile(r"[a-z][a-z0-9-]*")


@dataclass(frozen=True, slots=True)
class WebPage:
    """The function that answers requests for a path."""

    path: str
    run: UserFunction
    wants: frozenset[str]
    """The names of the function's parameters: all parameters of the path, and perhaps `request`."""


@dataclass(frozen=True, slots=True)
class Command:
    """A function that can be called from the command line."""

    name: str
    run: UserFunction


@dataclass(frozen=True, slots=True)
class WebAndCommands:
    """The web pages and commands that an app has declared."""

    pages: dict[str, WebPage] = field(default_factory=dict)
    commands: dict[str, Command] = field(default_factory=dict)

    def add_page(self, path: str, fn: UserFunction) -> None:
        """Add a page whose content is the result of the function.

        Raises:
            TopologyError: the path or the function's parameters can't be used.
        """
        if not _PATH.fullmatch(path):
            raise TopologyError(
                f"the path of a page must begin with / and have its parameters in braces, such as "
                f"/users/{{name}} or /days/{{day:int}}, not {path!r}"
            )
        # The path begins with a slash, so its first part has index 1.
        if path.split("/")[1] in OWN_PATHS:
            raise TopologyError(f"workers serve {path!r} themselves: use another path")
        if path in self.pages:
            raise TopologyError(f"there is already a page {path!r}")
        if not inspect.iscoroutinefunction(fn):
            raise TopologyError(f"page {path!r} must be `async def`: it runs on the worker's loop")
        # Both ways: a parameter of the path that the function lacks, and one of the function that
        # the path can't fill, would fail at the first request.
        wants, given = {*inspect.signature(fn).parameters}, {*_PARAMETER.findall(path)}
        if given - wants or wants - given - {REQUEST}:
            raise TopologyError(
                f"the function of page {path!r} takes ({', '.join(sorted(wants))}), but must take "
                f"the path's parameters ({', '.join(sorted(given))}), and `request` if it needs "
                "the request"
            )
        self.pages[path] = WebPage(path, fn, frozenset(wants))

    def add_command(self, name: str, fn: UserFunction) -> None:
        """Add a command of this name, which calls the function.

        Raises:
            TopologyError: the name is taken, or is not lower-case letters, digits and hyphens.
        """
        if not _COMMAND.fullmatch(name):
            raise TopologyError(
                f"a command's name must consist of lower-case letters, digits and hyphens: {name!r}"
            )
        if name in self.commands:
            raise TopologyError(f"there is already a command {name!r}")
        self.commands[name] = Command(name, fn)


TimerFunction = TypeVar("TimerFunction", bound=Callable[[], Awaitable[None]])
TimedFunction: TypeAlias = Callable[[datetime], Awaitable[None]]
CronFunction = TypeVar("CronFunction", bound=TimedFunction | Callable[[], Awaitable[None]])
PageFunction = TypeVar("PageFunction", bound=Callable[..., Awaitable[object]])
CommandFunction = TypeVar("CommandFunction", bound=UserFunction)


class AppServices:
    """The decorators of an app for functions that no record calls."""

    def __init__(self, timezone: str) -> None:
        self.timezone = timezone
        """The default time zone of crontabs."""
        self._by_the_clock = Clockwork()
        self._front = WebAndCommands()

    @property
    def timers(self) -> tuple[Timer, ...]:
        """The timers, in the order of their declaration."""
        return tuple(self._by_the_clock.timers)

    @property
    def crontabs(self) -> tuple[Crontab, ...]:
        """The crontabs, in the order of their declaration."""
        return tuple(self._by_the_clock.crontabs)

    @property
    def tasks(self) -> tuple[Service, ...]:
        """The functions that each worker runs once, in the order of declaration."""
        return tuple(self._by_the_clock.services.values())

    @property
    def pages(self) -> tuple[WebPage, ...]:
        """The pages, in the order of declaration."""
        return tuple(self._front.pages.values())

    @property
    def commands(self) -> Mapping[str, Command]:
        """The commands by name."""
        return MappingProxyType(self._front.commands)

    def timer(
        self, every: Dur, *, on: Literal["leader", "every_worker"] = "leader"
    ) -> Callable[[TimerFunction], TimerFunction]:
        """Call an async function at intervals of the wall clock; a decorator.

        Args:
            every: the interval; the first call is one interval after the start. On the leader, the
                interval counts from the last call by any leader, and missed calls are made up for
                by one.
            on: one worker of the app ("leader"), or each of them ("every_worker").

        Raises:
            ConfigError: the interval is not a duration or is 0.
            TopologyError: the function is not `async def`, or takes arguments.
        """
        every_ms = duration_ms(every)
        if not every_ms:
            raise ConfigError("a timer's interval must be longer than 0 ms")
        _check_on(on)

        def declare(fn: TimerFunction) -> TimerFunction:
            _arguments_of("timer", fn, 0)
            self._by_the_clock.timers.append(Timer(fn.__name__, fn, every_ms, on))
            return fn

        return declare

    def crontab(
        self,
        spec: str,
        *,
        tz: str | None = None,
        on: Literal["leader", "every_worker"] = "leader",
        misfire: Literal["skip", "once", "all"] = "skip",
    ) -> Callable[[CronFunction], CronFunction]:
        """Call an async function at times of a cron expression; a decorator.

        A function with a parameter receives the due time.

        Args:
            spec: minute, hour, day, month and weekday, such as "30 2 * * *".
            tz: the time zone; the app's by default.
            on: one worker of the app ("leader"), or each of them ("every_worker").
            misfire: which missed runs are made up for, also those while no worker ran: none that
                is late by more than a minute ("skip"), the latest ("once"), or all. For the last
                two, an interrupted run counts as missed.

        Raises:
            ConfigError: the expression or the time zone is not valid.
            TopologyError: the function is not `async def`, or takes other arguments.
        """
        timezone = tz or self.timezone
        # For the error: a worker makes the schedule again from the expression.
        cron_times(spec, timezone)
        _check_on(on)
        if misfire not in {"skip", "once", "all"}:
            raise ConfigError(f"misfire must be 'skip', 'once' or 'all', not {misfire!r}")

        def declare(fn: CronFunction) -> CronFunction:
            takes_due_time = _arguments_of("crontab", fn, 1) == 1
            run = cast("TimedFunction", fn if takes_due_time else _without_time(fn))
            self._by_the_clock.crontabs.append(
                Crontab(fn.__name__, run, spec, timezone, on, misfire)
            )
            return fn

        return declare

    def task(self, fn: TimerFunction) -> TimerFunction:
        """Run an async function once in each worker, from the worker's start on; a decorator.

        The function may return or run for ever; it is cancelled when the worker stops. An error
        that it raises ends the worker.

        Raises:
            TopologyError: the function is not `async def`, or the app has a task of its name.
        """
        name = fn.__name__
        _check_async(name, fn)
        if name in self._by_the_clock.services:
            raise TopologyError(f"there is already a task {name!r}: give the function another name")
        self._by_the_clock.services[name] = Service(name, fn)
        return fn

    def page(self, path: str) -> Callable[[PageFunction], PageFunction]:
        """Answer requests for a path of the workers' HTTP server (`web=`); a decorator.

        The function is `async`. It gets the parameters of the path by name, and Starlette's request
        if it has a parameter `request`. It returns text (HTML), a Response of Starlette, or an
        object to write as JSON. Every worker answers; `fetch` and `scan` of a table read rows of
        all workers.

        Args:
            path: a path such as "/report" or "/users/{name}"; "{day:int}" is a whole number.

        Raises:
            TopologyError: the path is taken, or its parameters are not those of the function.
        """

        def declare(fn: PageFunction) -> PageFunction:
            self._front.add_page(path, fn)
            return fn

        return declare

    def command(self, name: str | None = None) -> Callable[[CommandFunction], CommandFunction]:
        """Make a function a command: `python app.py NAME`, `streamlog -A app NAME`; a decorator.

        The function's parameters and their annotations are the command's arguments and options, as
        with Typer. An async function runs with the app's log open, so it can
        `await topic.send(...)`.

        Args:
            name: the name of the command; by default that of the function, with hyphens.

        Raises:
            TopologyError: the name is taken.
        """

        def declare(fn: CommandFunction) -> CommandFunction:
            self._front.add_command(name or fn.__name__.replace("_", "-"), fn)
            return fn

        return declare


def _check_async(name: str, fn: object) -> None:
    if not inspect.iscoroutinefunction(fn):
        raise TopologyError(f"task {name!r} must be `async def` and take no arguments")


def _without_time(fn: UserFunction) -> TimedFunction:
    """Return the function as one that takes the due time."""

    # `__wrapped__` leads to its code: a contract names the topics that it sends to.
    @functools.wraps(fn)
    def run(_due: datetime) -> Awaitable[None]:
        made: Awaitable[None] = fn()
        return made

    return run


def _arguments_of(kind: str, fn: UserFunction, most: int) -> int:
    """Return with how many arguments to call a scheduled function: `most`, or fewer if it must be.

    Checked here, because a nightly job that can't be called would fail in the night.

    Raises:
        TopologyError: the function is not `async def`, or can't be called so.
    """
    name = fn.__name__
    if not inspect.iscoroutinefunction(inspect.unwrap(fn)):
        raise TopologyError(f"{kind} {name!r} must be `async def`")
    signature = inspect.signature(fn)
    for count in range(most, -1, -1):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    takes = "the due time or nothing" if most else "no arguments"
    raise TopologyError(f"{kind} {name!r} must take {takes}, not {signature}")


def _check_on(on: str) -> None:
    if on not in {"leader", "every_worker"}:
        raise ConfigError(f"on must be 'leader' or 'every_worker', not {on!r}")
