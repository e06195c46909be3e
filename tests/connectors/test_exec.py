from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from streamlog.connect import ConnectError
from streamlog.connectors.exec import Exec
from streamlog.errors import ConfigError
from tests.connectors.runs import on_loop, reading


@on_loop
async def test_each_line_of_a_command_is_a_record(tmp_path: Path) -> None:
    command = ["sh", "-c", 'pwd; echo "$WORD"; printf end']
    source = Exec(
        command=command, restart=None, environment={"WORD": "hi"}, directory=str(tmp_path)
    )
    async with reading(source) as life:
        assert await life.take(3) == [str(tmp_path).encode(), b"hi", b"end"]
        with pytest.raises(StopAsyncIteration):
            await life.take(4)


@on_loop
async def test_a_command_that_ends_runs_again() -> None:
    async with reading(Exec(command=["echo", "x"], restart="1ms")) as life:
        assert await life.take(3) == [b"x"] * 3
        assert life.context.counts["command_ends"] == 2


@on_loop
async def test_a_command_that_fails_is_an_error_if_it_is_not_to_run_again() -> None:
    with pytest.raises(ConnectError, match="sh ended with exit code 3"):
        async with reading(Exec(command=["sh", "-c", "exit 3"], restart=None)) as life:
            await life.take(1)


@on_loop
async def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ConnectError, match="/no/program can't be run"):
        async with reading(Exec(command=["/no/program"])) as life:
            await life.step()


@on_loop
async def test_a_command_ends_with_its_reader(tmp_path: Path) -> None:
    mark = tmp_path / "ended"
    # It waits for the signal itself: one that came just before a sleep would not end the sleep.
    code = (
        "import pathlib, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGTERM})\n"
        f"pathlib.Path({str(mark)!r}).touch()\n"
    )
    async with reading(Exec(command=[sys.executable, "-c", code])) as life:
        await life.take(1)
    assert mark.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "ls -l"}, "is no list"),
        ({"command": []}, "is no list"),
        ({"command": ["ls"], "restart": "0s"}, "must be longer than 0"),
        ({"command": ["ls"], "line_bytes_max": 0}, "line_bytes_max=0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Exec(**settings).check()
