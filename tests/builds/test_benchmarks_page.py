"""The tables of docs/benchmarks.md say what the history says."""

from __future__ import annotations

import re

import pytest

from benchmarks.page import PAGE, TABLES, Comparison, Row, newest_figures, short, table, written

COMPARISON = Comparison(
    ("Kafka",),
    (
        Row("write", "w: ours", ("w: Kafka",)),
        Row("read", "r: ours", ("r: Kafka",)),
        Row("alone", "a"),
        Row("never measured", "n"),
    ),
)
FIGURES = {
    "w: ours": [0.119, 0.11, 0.1234, 5, "us"],
    "w: Kafka": [0.238, 0.2, 0.3, 5, "us"],
    "r: ours": [300_000.0, 290_000.0, 310_000.0, 3, "records/s"],
    "r: Kafka": [200_000.0, 200_000.0, 200_000.0, 1, "records/s"],
    "a": [7.0, 7.0, 7.0, 1, "MiB"],
}


def test_the_page_is_what_the_history_gives() -> None:
    page = PAGE.read_text()
    assert page == written(page, newest_figures()), "`make bench-page` writes it anew"


def test_a_row_has_medians_ends_and_how_many_times_ours_is_better() -> None:
    assert table(COMPARISON, FIGURES).splitlines() == [
        "|  | streamlog | Kafka | times |",
        "| --- | ---: | ---: | ---: |",
        "| write | 0.119 us (0.11 to 0.123) | 0.238 us (0.2 to 0.3) | 2 |",
        "| read | 300,000 records/s (290,000 to 310,000) | 200,000 records/s | 1.5 |",
        "| alone | 7 MiB |  |  |",
    ]


@pytest.mark.parametrize(
    ("value", "said"), [(0.0, "0"), (0.12345, "0.123"), (99.94, "99.9"), (6_144_770.0, "6,140,000")]
)
def test_figures_have_three_digits(value: float, said: str) -> None:
    assert short(value) == said


def test_a_page_without_the_place_of_a_table_is_refused() -> None:
    page = PAGE.read_text()
    for name in TABLES:
        other = re.sub(f"<!-- end of {name} -->\n", "", page)
        with pytest.raises(ValueError, match=f"0 places for the table {name}"):
            written(other, FIGURES)
