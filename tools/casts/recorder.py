"""Recorder: shells in pseudo-terminals, driven by a script, with what they print and when.

Rule: a script waits for what it expects to read and never for a time, so that a slow machine
records the cast that a fast one does. Typing and pauses are written into the recording afterwards.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from streamlog.clock import SystemClock

CLOCK: Final = SystemClock()
PATIENCE_S: Final = 120
"""How long a script waits for what it expects."""
LETTER_S: Final = 0.04
"""What typing a letter takes in the cast."""
PAUSE_S: Final = 0.7
"""Longer pauses between outputs are cut to this, as `asciinema rec --idle-time-limit` does."""
HIDDEN_ROWS: Final = 24
READ_BYTES: Final = 65_536
PROMPT: Final = "\x1b[1;32m$\x1b[0m "
READY: Final = "\x1e"
"""What a shell prints when it waits for a command: the record separator, of no use to others."""


@dataclass(frozen=True, slots=True)
class Event:
    """What a pane prints."""

    at_s: float
    pane: int
    text: str


@dataclass(slots=True)
class Cast:
    """A recording of one or more panes."""

    title: str
    columns: int
    rows: tuple[int, ...]
    """Of each pane."""
    events: list[Event] = field(default_factory=list)

    def add(self, pane: int, text: str, after_s: float) -> None:
        """Add an output, a time after the one before."""
        before = self.events[-1].at_s if self.events else 0.0
        self.events.append(Event(before + after_s, pane, text))

    def write(self, path: Path, pane: int) -> None:
        """Write a pane as a file for asciinema's players, version 2 of the format."""
        head = {"version": 2, "width": self.columns, "height": self.rows[pane], "title": self.title}
        lines = [json.dumps(head)]
        lines += [json.dumps([e.at_s, "o", e.text]) for e in self.events if e.pane == pane]
        path.write_text("\n".join(lines) + "\n")


class Pane:
    """A shell in a pseudo-terminal, which a script types into."""

    def __init__(self, cast: Cast, number: int, here: Path, variables: Mapping[str, str]) -> None:
        self._cast, self._number = cast, number
        self.pid, self._fd = os.forkpty()
        if self.pid == 0:
            os.chdir(here)
            own = {"PS1": "", "PROMPT_COMMAND": f"printf '{READY}'", "TERM": "xterm-256color"}
            shell = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
            os.execvpe("bash", shell, {**os.environ, **variables, **own})  # noqa: S606 - typed into
        self._is_hidden = number >= len(cast.rows)
        rows = HIDDEN_ROWS if self._is_hidden else cast.rows[number]
        size = struct.pack("HHHH", rows, cast.columns, 0, 0)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, size)
        self._unread, self._is_shown = "", False
        self._waits_since_s = CLOCK.now_ms() / 1000
        self.end()
        # The script prints what it types, at its own speed; an echo would print it twice.
        self._send("stty -echo\n")
        self.end()
        self._is_shown = True
        self._print(PROMPT, LETTER_S)

    def type(self, command: str, until: str) -> None:
        """Type a command, and wait for a text in its output."""
        for at in range(0, len(command), 2):
            self._print(command[at : at + 2], 2 * LETTER_S)
        self._print("\r\n", PAUSE_S)
        self._send(f"{command}\n")
        self.expect(until)

    def run(self, command: str) -> None:
        """Type a command, and wait for its end."""
        self.type(command, READY)
        self._print(PROMPT, LETTER_S)

    def press(self, key: str, until: str) -> None:
        """Press a key of a program, and wait for a text in its output."""
        self._send(key)
        self.expect(until)

    def end(self) -> None:
        """Wait for the end of what runs."""
        self.expect(READY)
        if self._is_shown:
            self._print(PROMPT, LETTER_S)

    def expect(self, text: str) -> None:
        """Wait for a text in the output of what runs."""
        wanted = re.compile(text)
        self._waits_since_s = CLOCK.now_ms() / 1000
        until_s = self._waits_since_s + PATIENCE_S
        while (found := wanted.search(self._unread)) is None:
            left_s = until_s - CLOCK.now_ms() / 1000
            if left_s < 0 or not select.select([self._fd], [], [], left_s)[0]:
                sys.exit(f"{self._cast.title}: no {text!r} in {self._unread!r}")
            self._read()
        self._unread = self._unread[found.end() :]

    def rest(self, seconds: float) -> None:
        """Let the reader of the cast read."""
        self._print("", seconds)

    def close(self) -> None:
        """End the shell, and what still runs in it."""
        os.close(self._fd)
        os.kill(self.pid, signal.SIGHUP)
        os.waitpid(self.pid, 0)

    def _read(self) -> None:
        text = os.read(self._fd, READ_BYTES).decode(errors="replace")
        self._unread += text
        now_s = CLOCK.now_ms() / 1000
        if self._is_shown:
            self._print(text.replace(READY, ""), min(now_s - self._waits_since_s, PAUSE_S))
        self._waits_since_s = now_s

    def _print(self, text: str, after_s: float) -> None:
        if not self._is_hidden:
            self._cast.add(self._number, text, after_s)

    def _send(self, text: str) -> None:
        os.write(self._fd, text.encode())
