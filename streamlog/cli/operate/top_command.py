"""`streamlog top`: a log in a terminal, live: what is wrong, topics, groups and brokers.

A shell around `top_screen`. Rule of the module: however it ends, the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from streamlog.adviser import advise
from streamlog.adviser.log_look import LogLook
from streamlog.cli.operate.top_screen import (
    HELP,
    VIEWS,
    TopState,
    TopTable,
    figures,
    headline,
    pressed,
    shown_rows,
    table_of,
)
from streamlog.cli.session import LogOption, Session, run, serve
from streamlog.cli.terminal import out, say
from streamlog.clock import SystemClock
from streamlog.console.log_sight import LogSight
from streamlog.console.log_watch import LogWatch
from streamlog.console.pages.page_parts import Tone

if TYPE_CHECKING:
    from rich.console import Console

WATCH_S: Final = 2.0
"""How long `--once` observes the log: rates are differences."""
FRAME_LINES: Final = 8
"""Lines around the rows."""
KEY_BYTES: Final = 64
LEAVE_SCREEN: Final = b"\x1b[?1049l\x1b[?25h"
"""Shows the screen from before, and the cursor."""
STYLES: Final[Mapping[Tone, str]] = {
    "bad": "red", "warn": "yellow", "good": "green", "info": "cyan", "calm": "",
}  # fmt: skip


def top(
    context: typer.Context,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print everything once, and end; for scripts.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all figures once, as one JSON object.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Show a log live: what is wrong, rates of topics, lag of groups, brokers.

    Keys: 1 to 4 or Tab change the view, s sorts by the next column, r turns the order around,
    arrow keys scroll, q ends. Without a terminal, it prints everything once.
    """
    session: Session = context.obj
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        sight = run(_look_once(session, log))
        if as_json:
            say(json.dumps(figures(sight)))
        else:
            _print_all(sight)
        return
    watch = LogWatch(
        lambda: session.open(log, listen=True),
        url=lambda: session.log_url(log),
        clock=SystemClock(),
    )
    # A mistake in the URL ends the command here, and not on the screen of the log.
    session.log_url(log)
    with raw_terminal() as restore:
        serve(lambda stop: _Top(watch, out(), stop).run(), "", at_once=restore)


async def _look_once(session: Session, log: str | None) -> LogSight:
    async with session.open(log, listen=True) as opened:
        clock = SystemClock()
        view = await LogLook(opened, url=session.log_url(log)).view(WATCH_S)
        return LogSight(
            view=view,
            findings=tuple(advise(view)),
            at_ms=clock.wall_ms(),
            cluster_id=opened.cluster_id,
        )


def _print_all(sight: LogSight) -> None:
    console = out()
    console.print(Text(headline(sight)))
    for name in VIEWS:
        table, state = table_of(sight, name), TopState(name)
        console.print(_grid(table, state, len(table.rows)))


@contextmanager
def raw_terminal() -> Iterator[Callable[[], None]]:
    """Read keys as they are pressed in the block; yields what restores the terminal at once."""
    import termios  # noqa: PLC0415 - Windows has none
    import tty  # noqa: PLC0415 - the same

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)

    def restore() -> None:
        os.write(sys.stdout.fileno(), LEAVE_SCREEN)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)

    # Not raw: Ctrl-C still is a signal, and Ctrl-Z suspends.
    tty.setcbreak(fd)
    try:
        yield restore
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _Top:
    """The screen of one run."""

    def __init__(self, watch: LogWatch, console: Console, stop: asyncio.Event) -> None:
        self._watch, self._console, self._stop = watch, console, stop
        self._state = TopState()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Show the log until a key or a signal ends it."""
        loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()
        # By the loop, and not by a thread: a thread that waits for a key can't be ended.
        loop.add_reader(fd, self._read, fd)
        loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
        try:
            with Live(console=self._console, screen=True, auto_refresh=False) as live:
                await self._show(live)
        finally:
            loop.remove_reader(fd)
            loop.remove_signal_handler(signal.SIGWINCH)

    async def _show(self, live: Live) -> None:
        async with self._watch.watched(), asyncio.TaskGroup() as tasks:
            owned = [
                tasks.create_task(self._watch.run(), name="look"),
                tasks.create_task(self._follow(), name="follow"),
                tasks.create_task(self._draw(live), name="draw"),
            ]
            await self._stop.wait()
            for each in owned:
                each.cancel()

    async def _follow(self) -> None:
        async for _ in self._watch.sights():
            self._changed.set()

    async def _draw(self, live: Live) -> None:
        while True:
            self._changed.clear()
            live.update(self._screen(), refresh=True)
            await self._changed.wait()

    def _read(self, fd: int) -> None:
        data = os.read(fd, KEY_BYTES)
        # The terminal has gone.
        if not data:
            self._stop.set()
            return
        text = data.decode(errors="replace")
        # A key such as an arrow sends several characters, and others one.
        for key in (text,) if text.startswith("\x1b") else text:
            table = table_of(self._watch.sight, self._state.view)
            self._state = pressed(
                self._state,
                key,
                columns=max(1, len(table.columns)),
                rows=len(table.rows),
                height=self._height(),
            )
        if self._state.is_done:
            self._stop.set()
        self._changed.set()

    def _height(self) -> int:
        return max(1, self._console.size.height - FRAME_LINES)

    def _screen(self) -> RenderableType:
        sight, state = self._watch.sight, self._state
        views = Text("  ").join(
            Text(f" {at} {name} ", style="reverse" if name == state.view else "dim")
            for at, name in enumerate(VIEWS, 1)
        )
        return Group(
            Text(headline(sight), style="bold", no_wrap=True, overflow="ellipsis"),
            # Old figures must not be taken for new ones.
            Text(sight.error, style="red", no_wrap=True, overflow="ellipsis"),
            views,
            _grid(table_of(sight, state.view), state, self._height()),
            Text(HELP, style="dim", no_wrap=True, overflow="ellipsis"),
        )


def _grid(table: TopTable, state: TopState, height: int) -> RenderableType:
    rows = shown_rows(table, state, height)
    if not rows:
        return Text("nothing is wrong" if state.view == "problems" else f"no {state.view}")
    by, is_down = state.sort
    total = len(table.rows)
    title = table.title if len(rows) == total else f"{table.title} ({len(rows)} of {total})"
    grid = Grid(title=title, box=SIMPLE_HEAD, title_justify="left", expand=True, pad_edge=False)
    is_sorted = state.view != "problems"
    for at, column in enumerate(table.columns):
        mark = (" ↓" if is_down else " ↑") if is_sorted and at == by else ""
        grid.add_column(
            Text(f"{column.title}{mark}"),
            justify="right" if column.is_number else "left",
            # What is wrong is a sentence; a row of figures has one line.
            no_wrap=is_sorted,
            overflow="ellipsis" if is_sorted else "fold",
        )
    for row in rows:
        grid.add_row(*map(Text, row.cells), style=STYLES[row.tone])
    return grid
