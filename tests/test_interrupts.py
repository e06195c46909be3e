"""Ctrl-C at any moment of a command: exit code 130, or 0 after an orderly stop; no traceback."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.interrupts import exiting_at_once, interruptible

ROOT = Path(__file__).parent.parent
ATTEMPTS = 40 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 3
LATEST_S = 2.0
STARTED = "begun"
BEGIN = f"import os; os.write(1, b'{STARTED}\\n'); "
"""Until this line the interpreter itself starts, and may print its own traceback."""
COMMAND = BEGIN + "from streamlog.__main__ import main; main()"
SCRIPT = """
from streamlog import App, Stream

app = App("hello")
greetings = app.topic("greetings", key=str, value=str)

@app.agent(greetings)
async def greet(stream: Stream[str, str]) -> None:
    async for who in stream:
        print(who)

if __name__ == "__main__":
    app.main()
"""
COMMANDS = {
    "doctor": ["doctor"],
    "help": ["--help"],
    "worker": ["-A", "hello", "worker"],
    "send": ["-A", "hello", "send", "greetings", "x"],
    "broker": ["broker", "--data", "data", "--listen", "127.0.0.1:0"],
    "consume": ["-A", "hello", "consume", "greetings"],
    "connecting": ["topics", "list", "--log", "kafka://127.0.0.1:{silent}"],
    "script": [],
}


@pytest.fixture
def silent() -> Iterator[int]:
    """Yield the port of a server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_at_any_moment_prints_no_traceback(name: str, tmp_path: Path, silent: int) -> None:
    (tmp_path / "hello.py").write_text(SCRIPT)
    (tmp_path / "script.py").write_text(BEGIN + "\n" + SCRIPT)
    arguments = [argument.format(silent=silent) for argument in COMMANDS[name]]
    command = [sys.executable, "-c", COMMAND, *arguments]
    if name == "script":
        command = [sys.executable, "script.py"]
    chance = random.Random(name)
    for _ in range(ATTEMPTS):
        after_s = chance.uniform(0, LATEST_S)
        code, printed = interrupted(command, tmp_path, after_s)
        assert code in {0, 130, *({5} if name == "consume" else ())}, (after_s, code, printed)
        assert "Traceback" not in printed, (after_s, printed)
        assert "KeyboardInterrupt" not in printed, (after_s, printed)


def interrupted(command: list[str], cwd: Path, after_s: float) -> tuple[int, str]:
    """Return exit code and output of a process that gets SIGINT `after_s` after its first line."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == f"{STARTED}\n".encode()
    time.sleep(after_s)
    process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # Prints what each thread does (faulthandler).
        raise AssertionError(process.communicate()[0].decode()) from None
    finally:
        process.kill()
    return process.returncode, output.decode()


def test_only_an_interruptible_block_raises_keyboard_interrupt() -> None:
    program = """
import os, signal
from streamlog.interrupts import exiting_at_once, interruptible
with exiting_at_once():
    with interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("raised", flush=True)
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("not printed", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (130, "raised\n")


def test_a_signal_handler_of_the_program_is_kept() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exiting_at_once(), interruptible():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


NAMED = """
from streamlog import App

app = App("hello")

class Field:
    def __set_name__(self, owner, name):
        raise KeyboardInterrupt

class Owner:
    field = Field()
"""


def test_an_interrupt_while_a_class_is_made_prints_no_traceback() -> None:
    """Python 3.11 raises a RuntimeError from it."""
    command = [sys.executable, "-c", NAMED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
