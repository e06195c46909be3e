"""What comes from others changes no terminal, and no line of a log."""

from __future__ import annotations

import io
import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from streamlog.cli.plain_console import PlainConsole
from streamlog.cli.plain_text import OneLineFormatter, one_line, several_lines

OBEYED = {"Cc", "Zl", "Zp"}
HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\x1b\r\n\x9b\x00\x7f\u2028\u202e\u2066[]")),
    max_size=30,
)


def obeyed(text: str) -> list[str]:
    """By what Unicode says of each character."""
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return [
        each
        for each in text
        if unicodedata.category(each) in OBEYED or unicodedata.bidirectional(each) in bidirectional
    ]


@given(HOSTILE)
def test_one_line_has_nothing_that_is_obeyed(text: str) -> None:
    assert not obeyed(one_line(text))
    assert {*obeyed(several_lines(text))} <= {"\n", "\t"}


@given(HOSTILE)
def test_what_is_harmless_stays_as_it_is(text: str) -> None:
    harmless = "".join(each for each in text if not obeyed(each) and each not in "\u200e\u200f")
    assert one_line(harmless) == several_lines(harmless) == harmless


@given(HOSTILE)
def test_one_record_is_one_line_of_the_log(text: str) -> None:
    record = logging.LogRecord("streamlog", logging.WARNING, "", 0, "from %s", (text,), None)
    line = OneLineFormatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING from ")
    assert not obeyed(line)


@given(HOSTILE)
def test_a_table_shows_names_and_obeys_none(text: str) -> None:
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=400, markup=False, emoji=False, highlight=False)
    grid = Table(box=None, show_header=False)
    grid.add_row(text, "[red]end")
    console.print(grid)
    assert {*obeyed(shown.getvalue())} <= {"\n", "\t"}
    assert "[red]end" in shown.getvalue()
