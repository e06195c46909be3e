"""Text from elsewhere changes no terminal, and forges no log line."""

from __future__ import annotations

import io
import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from streamlog.cli.output.plain_console import PlainConsole
from streamlog.cli.output.plain_text import OneLineFormatter, one_line, several_lines

OBEYED = {"Cc", "Zl", "Zp"}
HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\x1b\r\n\x9b\x00\x7f\u2028\u202e\u2066[]")),
    max_size=30,
)


def control_characters(text: str) -> list[str]:
    """Return the control characters, by their Unicode categories."""
    bidirectional = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return [
        each
        for each in text
        if unicodedata.category(each) in OBEYED or unicodedata.bidirectional(each) in bidirectional
    ]


@given(HOSTILE)
def test_one_line_contains_no_control_characters(text: str) -> None:
    assert not control_characters(one_line(text))
    assert {*control_characters(several_lines(text))} <= {"\n", "\t"}


@given(HOSTILE)
def test_harmless_text_is_unchanged(text: str) -> None:
    harmless = "".join(
        each for each in text if not control_characters(each) and each not in "\u200e\u200f"
    )
    assert one_line(harmless) == several_lines(harmless) == harmless


@given(HOSTILE)
def test_a_log_record_is_one_line(text: str) -> None:
    record = logging.LogRecord("streamlog", logging.WARNING, "", 0, "from %s", (text,), None)
    line = OneLineFormatter("%(levelname)s %(message)s").format(record)
    assert line.startswith("WARNING from ")
    assert not control_characters(line)


@given(HOSTILE)
def test_a_table_shows_names_without_interpreting_them(text: str) -> None:
    shown = io.StringIO()
    console = PlainConsole(file=shown, width=400, markup=False, emoji=False, highlight=False)
    grid = Table(box=None, show_header=False)
    grid.add_row(text, "[red]end")
    console.print(grid)
    assert {*control_characters(shown.getvalue())} <= {"\n", "\t"}
    assert "[red]end" in shown.getvalue()
