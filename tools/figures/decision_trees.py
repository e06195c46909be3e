"""Decision trees, drawn from the tables of questions in a document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tools.figures.canvas import Canvas

ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| \[(.+?)\]\((.+?)\) \|$", re.MULTILINE)
WIDTH, ROW_HEIGHT, TOP = 860, 62, 20


class Question(NamedTuple):
    """A question, where its answer is, and what follows from a yes."""

    text: str
    look: str
    answer: str
    link: str


def trees(document: str) -> Iterator[tuple[str, list[Question]]]:
    """Return the title and the questions of each section that has some."""
    for section in re.split(r"^## ", document, flags=re.MULTILINE)[1:]:
        if found := [Question(*row[1:]) for row in ROW.findall(section)]:
            yield section.partition("\n")[0], found


def draw(title: str, questions: list[Question]) -> str:
    """Draw questions from top to bottom, with what follows from a yes on the right."""
    canvas = Canvas(WIDTH, TOP + ROW_HEIGHT * len(questions) + 52, title)
    for number, question in enumerate(questions):
        y = TOP + ROW_HEIGHT * number
        canvas.box(20, y, 480, 42, question.text, _plain(question.look), role="plain")
        canvas.line((500, y + 21), (594, y + 21))
        canvas.text(540, y + 15, "yes", "soft", anchor="middle")
        is_elsewhere = question.answer.endswith("?")
        canvas.box(596, y, 244, 42, question.answer, role="key" if is_elsewhere else "good")
        canvas.line((260, y + 42), (260, y + ROW_HEIGHT))
        canvas.text(270, y + 56, "no", "soft")
    canvas.box(160, TOP + ROW_HEIGHT * len(questions), 200, 34, "ask doctor", role="faint")
    return canvas.svg()


def _plain(look: str) -> str:
    return look.replace("`", "")
