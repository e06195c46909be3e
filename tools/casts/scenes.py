"""Scenes: what each cast shows, typed command by command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.casts.recorder import Cast, Pane

README: Final = Path(__file__).parent.parent.parent / "README.md"
CTRL_C: Final = "\x03"
READING_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Scene:
    """A cast to record."""

    name: str
    title: str
    """What a reader hears who can't see it."""
    panes: tuple[tuple[str, int], ...]
    """The title and the rows of each terminal."""
    play: Callable[[list[Pane]], None]
    prepare: Callable[[Path], None]
    columns: int = 106
    hidden: int = 0
    """Terminals at work that the cast does not show."""

    def record(self, cast: Cast, here: Path, variables: Mapping[str, str]) -> None:
        """Play the scene in an empty directory."""
        self.prepare(here)
        with ExitStack() as stack:
            panes: list[Pane] = []
            for number in range(len(self.panes) + self.hidden):
                known = {"WORKERS_SHELL": str(panes[0].pid)} if panes else {}
                pane = Pane(cast, number, here, {**variables, **known})
                panes.append(stack.enter_context(_opened(pane)))
            self.play(panes)


@contextmanager
def _opened(pane: Pane) -> Iterator[Pane]:
    try:
        yield pane
    finally:
        pane.close()


def _program(name: str, start: str) -> Callable[[Path], None]:
    """Return what writes a program of the README into a directory: the block with this text."""

    def write(here: Path) -> None:
        blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
        text = next(block for block in blocks if start in block)
        # The cast is narrower than the page: without the comments beside the code.
        (here / name).write_text(re.sub(r" {2,}#.*", "", text))

    return write


def _hello(panes: list[Pane]) -> None:
    worker, sender = panes
    worker.run("cat hello.py")
    worker.rest(READING_S)
    worker.type("python hello.py", until="rebalance: .*tasks")
    sender.run("streamlog -A hello send greetings world")
    worker.expect("hello, world")
    worker.rest(READING_S / 2)
    sender.run("streamlog -A hello send greetings 'New York'")
    worker.expect("hello, New York")
    worker.rest(READING_S)
    worker.press(CTRL_C, until="stopped")
    worker.end()


def _resume(panes: list[Pane]) -> None:
    worker, other = panes
    worker.run("cat shop.py")
    worker.rest(READING_S)
    worker.type("streamlog -A shop worker --web :8080", until="rebalance: .*tasks")
    other.run("streamlog -A shop send sales 3.5 --key ulm")
    other.run("curl -s localhost:8080/tables/takings/ulm")
    other.rest(READING_S)
    # The child of the first terminal's shell, and no other worker of this machine.
    other.run("kill -9 $(pgrep -P $WORKERS_SHELL)")
    worker.end()
    worker.type("streamlog -A shop worker --web :8080", until="rebalance: .*tasks")
    other.run("streamlog -A shop send sales 1.5 --key ulm")
    other.run("curl -s localhost:8080/tables/takings/ulm")
    other.rest(READING_S)
    worker.press(CTRL_C, until="stopped")
    worker.end()


LOAD: Final = (
    "while sleep .02; do echo ulm 3.5; echo bonn 2; done |"
    " streamlog -A shop send sales --file - --key-separator ' '"
)


def _top(panes: list[Pane]) -> None:
    top, worker, sender = panes
    worker.type("streamlog -A shop worker", until="rebalance: .*tasks")
    sender.type(LOAD, until="sending")
    top.type("streamlog top", until="/s written")
    top.rest(READING_S / 2)
    for view, title in (("3", "Groups"), ("4", "Brokers"), ("2", "Topics")):
        top.press(view, until=title)
        # Twice more, so that the figures of a view are seen to move.
        top.expect(title)
        top.expect(title)
        top.rest(READING_S / 2)


SCENES: Final = (
    Scene(
        "hello",
        "An app of nine lines greets what a second terminal sends it",
        (("the worker", 19), ("a second terminal", 5)),
        _hello,
        prepare=_program("hello.py", 'App("hello")'),
    ),
    Scene(
        "resume",
        "A worker is killed with SIGKILL and started again; its table goes on from where it was",
        (("the worker", 18), ("a second terminal", 10)),
        _resume,
        prepare=_program("shop.py", "# shop.py"),
    ),
    Scene(
        "top",
        "The command streamlog top shows a log live: findings, rates of topics, lag of groups",
        (("streamlog top", 16),),
        _top,
        columns=118,
        hidden=2,
        prepare=_program("shop.py", "# shop.py"),
    ),
)
