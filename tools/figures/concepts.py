"""The figures of docs/concepts.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tools.figures.canvas import Canvas, Role

WIDTH: Final = 760
CELL: Final = 44


def _records(canvas: Canvas, x: float, y: float, *words: str, role: Role = "plain") -> None:
    """Draw records side by side, as they lie in a partition."""
    for number, word in enumerate(words):
        canvas.box(x + CELL * number, y, CELL, 30, word, role=role)


def log() -> str:
    """A topic with its partitions: keys choose the partition, offsets count in it."""
    canvas = Canvas(WIDTH, 232, "A topic is a log in partitions; a key is always in one of them")
    canvas.box(20, 92, 120, 44, "producer", role="key")
    canvas.text(250, 26, "topic sales", "title")
    rows = [("pretzel", "pretzel", "roll", "pretzel"), ("bagel", "bagel"), ("cake", "pie", "cake")]
    for number, keys in enumerate(rows):
        y = 42 + 60 * number
        canvas.line((140, 114), (236, y + 15))
        canvas.text(250, y + 20, f"partition {number}")
        for offset, key in enumerate(keys):
            canvas.box(340 + 68 * offset, y, 68, 30, key)
            canvas.text(374 + 68 * offset, y + 43, f"offset {offset}", "soft", anchor="middle")
        canvas.box(340 + 68 * len(keys), y, 68, 30, "next", role="faint")
    canvas.text(20, 160, "hash of the key", "soft")
    return canvas.svg()


def groups() -> str:
    """Two groups read a topic, each with positions of its own."""
    canvas = Canvas(
        WIDTH, 236, "Members of a group share the partitions; groups do not disturb each other"
    )
    for number in range(3):
        y = 40 + 62 * number
        canvas.text(20, y + 20, f"partition {number}")
        _records(canvas, 104, y, *"0123", role="plain")
    canvas.text(520, 26, "group bakery: an app", "title")
    for number, (name, parts) in enumerate((("worker 1", (0, 1)), ("worker 2", (2,)))):
        y = 44 + 60 * number
        canvas.box(540, y, 130, 36, name, role="key")
        for part in parts:
            canvas.line((284, 55 + 62 * part), (538, y + 18))
    canvas.text(520, 180, "group report", "title")
    canvas.box(540, 190, 130, 30, "consumer", role="good")
    for part in range(3):
        canvas.line((284, 61 + 62 * part), (538, 205), dashed=True)
    return canvas.svg()


def windows() -> str:
    """Windows of event time, when they close, and which record is late."""
    canvas = Canvas(WIDTH, 262, "A window closes when event time has passed its end plus grace")
    left, minute = 60, 190.0
    for number in range(3):
        x = left + minute * number
        role: Role = "good" if number == 0 else "plain"
        canvas.box(x, 60, minute, 44, role=role)
        canvas.text(x + minute / 2, 52, f"window 9:0{number}", "title", anchor="middle")
        canvas.text(x, 122, f"9:0{number}", "soft", anchor="middle")
    canvas.line((left, 104), (left + minute * 3 + 40, 104))
    canvas.text(left + minute * 3 + 44, 108, "event time", "soft")
    for at, name in ((10, "a"), (50, "b"), (80, "c"), (135, "d")):
        canvas.box(left + minute * at / 60 - 12, 69, 24, 26, name, role="key")
    x = left + minute * 70 / 60
    canvas.line((x, 40), (x, 150), arrow=False, dashed=True)
    canvas.text(x, 168, "9:01:10: end plus 10 s of grace", anchor="middle")
    canvas.text(
        left,
        200,
        "c takes event time past 9:01:10: the window 9:00 closes, and its row is written.",
    )
    canvas.box(left, 214, 24, 26, "e", role="bad")
    canvas.text(left + 34, 231, "of 9:00:30 arrives after d: its window is closed, so it is late.")
    return canvas.svg()


def joins() -> str:
    """Three joins: stream and table, two streams, stream and table as of a time."""
    canvas = Canvas(WIDTH, 300, "Three joins, by what a record meets")
    for number, (title, below) in enumerate(
        (
            ("stream and table", "meets the latest row of its key"),
            ("two streams, within 15 min", "meets each record of its key near in time"),
            ("stream and table, as of its time", "meets the row that held at its time"),
        )
    ):
        y = 24 + 94 * number
        canvas.text(20, y + 14, title, "title")
        canvas.text(20, y + 34, below, "soft")
        canvas.line((330, y + 18), (720, y + 18))
        canvas.line((330, y + 62), (720, y + 62))
    _joined(canvas, 24, sale=640, others=((380, "90"), (520, "95")), met=(520,))
    _joined(canvas, 118, sale=560, others=((370, "p1"), (500, "p2"), (620, "p3")), met=(500, 620))
    _joined(canvas, 212, sale=460, others=((380, "90"), (560, "95")), met=(380,))
    return canvas.svg()


def _joined(
    canvas: Canvas, y: float, sale: float, others: Iterable[tuple[float, str]], met: Iterable[float]
) -> None:
    """Draw a record above those of the other side, with lines to those that it meets."""
    for x in met:
        canvas.line((sale, y + 30), (x, y + 49))
    canvas.box(sale - 24, y + 6, 48, 24, "sale", role="key")
    for x, word in others:
        canvas.box(x - 20, y + 50, 40, 24, word, role="good" if x in {*met} else "plain")


def exactly_once() -> str:
    """What a commit writes together, and what a crash before it leaves."""
    canvas = Canvas(WIDTH, 236, "Rows, state, and positions are in one transaction")
    canvas.box(20, 84, 130, 44, "sales", "records 0 to 99")
    canvas.line((150, 106), (214, 106))
    canvas.box(216, 84, 120, 44, "task", role="key")
    canvas.box(420, 20, 320, 164, role="faint")
    canvas.text(580, 40, "one transaction", "title", anchor="middle")
    for number, words in enumerate(
        ("rows of the results", "changes of the state", "position: 100")
    ):
        y = 52 + 42 * number
        canvas.box(450, y, 260, 32, words, role="good")
        canvas.line((336, 106), (448, y + 16))
    canvas.text(
        20,
        212,
        "A crash before its end: readers see nothing of it, and the task begins again at 0.",
    )
    return canvas.svg()


def history() -> str:
    """A history up to a cut, and workers that continue from it."""
    canvas = Canvas(WIDTH, 234, "A history runs to a cut, and workers continue from its snapshot")
    canvas.text(20, 40, "log", "title")
    _records(canvas, 100, 20, *(str(number) for number in range(9)), role="plain")
    _records(canvas, 100 + CELL * 9, 20, "9", "10", "…", role="faint")
    cut = 100 + CELL * 9
    canvas.line((cut, 12), (cut, 214), arrow=False, dashed=True)
    canvas.text(cut + 8, 70, "cut: one time in all partitions", "soft")
    canvas.box(
        100, 84, CELL * 9, 40, "history: the app over all records, here or in Spark", role="key"
    )
    canvas.box(100, 150, 180, 44, "rows, held back", "until the hand-over")
    canvas.box(316, 150, 180, 44, "snapshot", "state at the cut", role="good")
    canvas.line((190, 124), (190, 148))
    canvas.line((406, 124), (406, 148))
    canvas.box(540, 150, 190, 44, "workers", "go on with record 9", role="key")
    canvas.line((496, 172), (538, 172))
    return canvas.svg()


FIGURES: Final[dict[str, Callable[[], str]]] = {
    "log": log,
    "groups": groups,
    "windows": windows,
    "joins": joins,
    "exactly-once": exactly_once,
    "history": history,
}
"""Each figure by its name: the file is docs/images/concept-NAME.svg."""
