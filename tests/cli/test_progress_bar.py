"""Progress bars in a terminal of their own: what they show, what stays, and when there is none."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

from streamlog.client.admin import NewTopic
from streamlog.log import Log

ROOT = Path(__file__).parent.parent.parent
SHOW_AT_ONCE = """
from streamlog.cli.output import progress_bar
progress_bar.APPEAR_S = 0
from streamlog.cli.root import main
main()
"""
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
RECORDS = 3_000


def on_terminal(script: str, *arguments: str, stdout: int | None = None) -> tuple[str, str]:
    """Run a script with standard error on a terminal; return what it and the output received.

    Without `stdout`, standard output is the terminal as well.
    """
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout or there,
        stderr=there,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(there)
    shown = bytearray()
    while True:
        try:
            shown += os.read(here, 65_536)
        except OSError:  # The last process has closed the terminal.
            break
    os.close(here)
    output = "" if process.stdout is None else process.stdout.read()
    assert process.wait() == 0, shown.decode()
    if process.stdout is not None:
        process.stdout.close()
    return shown.decode(), output


def log_at(directory: Path) -> Path:
    async def fill() -> None:
        async with Log.open(f"embedded:{directory}/log", listen=False, create=True) as log:
            await log.admin().create_topics([NewTopic("orders", 1)])
            async with log.producer() as producer:
                for _ in range(RECORDS):
                    await producer.send("orders", b"v" * 100, key=b"k")
                await producer.flush()

    asyncio.run(fill())
    return directory / "log"


def test_a_command_shows_a_bar_on_the_terminal_and_its_result_alone_in_a_pipe(
    tmp_path: Path,
) -> None:
    verify = ("log", "verify", str(log_at(tmp_path)))
    shown, output = on_terminal(SHOW_AT_ONCE, *verify, "--json", stdout=subprocess.PIPE)
    assert json.loads(output)["records"] == RECORDS
    assert f"reading {tmp_path}/log"[:30] in shown
    assert HIDE_CURSOR in shown
    # Nothing of the bar is left: its line is erased last, and the cursor is visible again.
    assert shown.rindex(SHOW_CURSOR) > shown.rindex(HIDE_CURSOR)
    assert shown.rstrip("\r\n").endswith("\x1b[2K")
    shown, _ = on_terminal(SHOW_AT_ONCE, *verify)
    assert "sound" in shown[shown.rindex("\x1b[2K") :]


def test_short_work_and_pipes_have_no_bar(tmp_path: Path) -> None:
    verify = ("log", "verify", str(log_at(tmp_path)))
    main = "from streamlog.cli.root import main; main()"
    shown, _ = on_terminal(main, *verify)
    assert "\x1b" not in shown
    done = subprocess.run(
        [sys.executable, "-c", SHOW_AT_ONCE, *verify],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stderr == ""


COUNTING = """
from streamlog.cli.output import progress_bar
from streamlog.cli.terminal import say
progress_bar.APPEAR_S = 0
with progress_bar.progress_bar("count\\x1b[2Jing", total=3, unit="rows", prints=PRINTS) as bar:
    for number in range(3):
        bar.advance()
        say(f"row {number}")
"""


def test_lines_stand_above_the_bar_and_names_control_no_terminal() -> None:
    shown, _ = on_terminal(COUNTING.replace("PRINTS", "False"))
    assert "3 of 3 rows" in shown
    assert r"count\x1b[2Jing" in shown
    assert "count\x1b" not in shown
    assert all(f"row {number}\r\n" in shown for number in range(3))
    # Rows that go to the terminal show by themselves how far the work is.
    shown, _ = on_terminal(COUNTING.replace("PRINTS", "True"))
    assert shown == "row 0\r\nrow 1\r\nrow 2\r\n"
    shown, output = on_terminal(COUNTING.replace("PRINTS", "True"), stdout=subprocess.PIPE)
    assert "3 of 3 rows" in shown
    assert output == "row 0\nrow 1\nrow 2\n"
