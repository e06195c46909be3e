"""What `streamlog top` shows and what its keys do, and the command itself in a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from streamlog.cli.operate.top_screen import (
    ARROWS,
    VIEWS,
    TopState,
    figures,
    headline,
    pressed,
    shown_rows,
    table_of,
)
from streamlog.client.admin import NewTopic
from streamlog.console.log_sight import LogSight
from streamlog.log import Log
from tests.adviser.views import log, topic

KEYS = st.sampled_from([*"1234srqkj", *ARROWS, "x", "é", "\x1b[Z"])
SIGHT = LogSight(view=log(*(topic(f"t{n}") for n in range(9))))


@given(st.lists(KEYS, max_size=30), st.integers(1, 12))
def test_any_keys_leave_a_screen_with_all_rows_that_fit(keys: list[str], height: int) -> None:
    state = TopState()
    for key in keys:
        table = table_of(SIGHT, state.view)
        before = state
        state = pressed(state, key, columns=len(table.columns), rows=len(table.rows), height=height)
        if before.is_done:
            assert state.is_done
    table = table_of(SIGHT, state.view)
    rows = shown_rows(table, state, height)
    assert len(rows) == min(height, len(table.rows))
    by, is_down = state.sort
    found = [row.keys[by] for row in rows]
    assert found == sorted(found, reverse=is_down)


def test_each_row_has_a_cell_and_a_key_for_each_column() -> None:
    for name in VIEWS[1:]:
        table = table_of(SIGHT, name)
        for row in table.rows:
            assert len(row.cells) == len(row.keys) == len(table.columns), name


def test_scrolling_reaches_the_last_row_and_comes_back() -> None:
    state = TopState("topics", sorts={"topics": (0, False)})

    def names() -> list[str]:
        return [row.cells[0] for row in shown_rows(table_of(SIGHT, "topics"), state, 4)]

    assert names() == ["t0", "t1", "t2", "t3"]
    for _ in range(20):
        state = pressed(state, "\x1b[B", columns=6, rows=9, height=4)
    assert names() == ["t5", "t6", "t7", "t8"]
    state = pressed(state, "\x1b[A", columns=6, rows=9, height=4)
    assert names() == ["t4", "t5", "t6", "t7"]


def test_before_the_first_look_and_after_a_failed_one_the_screen_says_so() -> None:
    assert "first time" in headline(LogSight())
    assert headline(LogSight(error="no broker answers")) == "no broker answers"
    assert figures(LogSight(error="no broker answers")) == {"error": "no broker answers"}


def command(at: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "streamlog", "top", "--log", f"embedded:{at}", *arguments]


def prepare(at: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{at}", listen=False) as opened:
            await opened.admin().create_topics([NewTopic("page-views", 2)])

    asyncio.run(main())


def test_a_script_gets_json_or_text(tmp_path: Path) -> None:
    prepare(tmp_path / "log")
    done = subprocess.run(
        command(tmp_path / "log", "--json"), capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    assert [(each["topic"], each["partitions"]) for each in told["topics"]] == [("page-views", 2)]
    # Without a terminal, it does not wait for keys.
    done = subprocess.run(
        command(tmp_path / "log"),
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert "page-views" in done.stdout
    assert "\x1b" not in done.stdout


def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    prepare(tmp_path / "log")
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    with subprocess.Popen(
        command(tmp_path / "log"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        seen = read_until(ours, b"first time")
        os.write(ours, b"2")
        seen += read_until(ours, b"page-views")
        # A resize draws the screen again, in its new width.
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 60, 0, 0))
        process.send_signal(signal.SIGWINCH)
        seen += read_until(ours, b"page-views")
        process.send_signal(signal.SIGINT)
        seen += read_until(ours, b"\x1b[?1049l")
        assert process.wait(60) == 0
    assert b"\x1b[?1049h" in seen
    assert b"Traceback" not in seen
    assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def read_until(fd: int, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += os.read(fd, 65_536)
    return seen
