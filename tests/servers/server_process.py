"""A server program of this machine, run for tests: a directory of its own, a free port, one owner.

A server that is not installed skips the test, with the package that has it. Servers that refuse to
run as root run under an account of their own, in a directory under /tmp that the account may enter
(pytest's own directories are closed to it). The server ends with the process that started it, even
if that is killed. The demonstrations use these servers, too, so pytest is not needed here.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

START_SECONDS = 60
STOP_SECONDS = 60
PORTS_TRIED = 5
PR_SET_PDEATHSIG = 1
FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin")
"""Where Debian has servers, beside PATH."""


class MissingProgramError(unittest.SkipTest):
    """This machine lacks a program; pytest skips the test and prints the message."""


def program(name: str, package: str) -> Path:
    """Return the path of a program.

    Raises:
        MissingProgramError: the machine lacks it; the message names Debian's package.
    """
    found = shutil.which(name)
    if found is not None:
        return Path(found)
    for folder in FOLDERS:
        for each in sorted(Path("/").glob(f"{folder[1:]}/{name}"), reverse=True):
            return each
    raise MissingProgramError(f"{name} is not installed (Debian: apt-get install {package})")


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listens on just now."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        return int(chosen.getsockname()[1])


def wait_until(holds: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until a condition of another process holds."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"{what} took longer than {seconds} s")
        time.sleep(0.02)


def _die_with_parent(how: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, how)


class ServerProcess(ABC):
    """One server on 127.0.0.1; entering the context starts it and waits until it answers.

    `stop` and `kill` keep the directory and the port, and `start` then continues on both, so that
    clients find the server again. Leaving the context removes the directory.
    """

    name: str
    package: str
    """Debian's package of the program."""
    accounts: tuple[str, ...] = ()
    """Accounts for a server that refuses to run as root, the first that exists is used."""
    death_signal = signal.SIGQUIT
    """What ends the server if the process that started it is killed."""
    start_seconds: float = START_SECONDS
    """How long the start may take."""

    def __init__(self) -> None:
        self.program = program(self.name, self.package)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the command that runs the server in the foreground on `self.port`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server takes requests."""

    def prepare(self) -> None:  # noqa: B027 - most servers need nothing
        """Make what the server needs in its new directory."""

    @property
    def log_path(self) -> Path:
        return self.directory / "server.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix=f"streamlog-server-{self.name}-"))
        self.account = None
        if os.geteuid() == 0 and self.accounts:
            known = {each.pw_name: each for each in pwd.getpwall()}
            account = next(known[each] for each in self.accounts if each in known)
            os.chown(self.directory, account.pw_uid, account.pw_gid)
            self.account = account
        try:
            self.prepare()
            for attempt in range(PORTS_TRIED):
                self.port = free_port()
                try:
                    self.start()
                    break
                except AssertionError:
                    # It may still be starting, and would outlive its directory.
                    self.kill()
                    # Another process may have taken the port in between.
                    if attempt == PORTS_TRIED - 1:
                        raise
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, command: Sequence[str]) -> None:
        """Run a command to its end under the server's account."""
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, **self._as_account()
        )
        assert done.returncode == 0, f"{command[0]}: {done.stdout}{done.stderr}"

    def start(self) -> None:
        """Start the server in its directory and wait until it answers."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=partial(_die_with_parent, self.death_signal),  # noqa: PLW1509 - one call into the kernel
                **self._as_account(),
            )
        started = f"the start of {self.name}"
        wait_until(lambda: not self.is_running or self.answers(), started, self.start_seconds)
        if not self.is_running:
            said = self.log_path.read_text(errors="replace")[-2_000:]
            raise AssertionError(f"{self.name} did not start: {said}")

    def stop(self) -> None:
        """End the server as an operator does."""
        self.end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server with no chance to write anything."""
        self.end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the server and start it again."""
        self.stop()
        self.start()

    def kill_and_restart(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def end(self, how: signal.Signals) -> None:
        """Send the server a signal that ends it, and wait until it has ended."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(timeout=STOP_SECONDS)

    def signal(self, which: signal.Signals) -> None:
        """Send the server a signal, such as SIGSTOP, which stops it until SIGCONT."""
        assert self._process is not None
        self._process.send_signal(which)

    def accepts(self) -> bool:
        """Whether the port takes connections."""
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _as_account(self) -> dict[str, Any]:
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}
