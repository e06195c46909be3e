"""An app's own commands, run as a user does."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.session import load_app
from tests.cli.console import row
from tests.worker.processes import STREAMLOG, running, streamlog

APP = """
from streamlog import App

app = App("own", log="embedded:log")
notes = app.topic("notes", key=str, value=str)
users = app.topic("users", key=str, value=str, partitioner="crc32")

@app.command()
async def add_notes(count: int, prefix: str = "n") -> None:
    "Write some notes."
    for number in range(count):
        await notes.send(f"note {number}", key=f"{prefix}{number}")
    print("written")

@app.command()
async def add_users() -> None:
    for number in range(8):
        await users.send("there", key=f"u{number}")

@app.command("shout")
def shout(text: str) -> None:
    print(text.upper())

clashing = App("clashing")
clashing.command("topics")(shout)
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(APP)
    return tmp_path


def test_an_async_command_can_send(here: Path) -> None:
    code, output = streamlog("-A", "own:app", "add-notes", "2", "--prefix", "x", cwd=here)
    assert (code, "written" in output) == (0, True), output
    with running(
        *STREAMLOG, "-A", "own:app", "consume", "notes", "--from-beginning", cwd=here
    ) as reader:
        assert {reader.line(r"^(x\d\t.*)$").group(1)} <= {"x0\tnote 0", "x1\tnote 1"}
        assert reader.stop() == 0


def test_a_command_sends_with_the_topics_partitioner(here: Path) -> None:
    assert streamlog("-A", "own:app", "add-users", cwd=here)[0] == 0
    code, output = streamlog("-A", "own:app", "topics", "check", "users", cwd=here)
    assert (code, row(output, "crc32", "8", "8")) == (0, True), output


def test_errors_of_an_app_command_look_like_built_in_ones(here: Path) -> None:
    assert streamlog("-A", "own:app", "shout", "hi", cwd=here) == (0, "HI")
    code, output = streamlog("-A", "own:app", "shout", cwd=here)
    assert (code, "Missing argument" in output) == (2, True)
    code, output = streamlog("-A", "own:app", "whisper", cwd=here)
    assert (code, "No such command 'whisper'" in output) == (2, True)
    code, output = streamlog("-A", "own:clashing", "topics", "list", cwd=here)
    assert (code, "rename the app's command" in output) == (2, True), output


def test_the_app_is_loaded_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    assert [*load_app("own:app").commands] == ["add-notes", "add-users", "shout"]
