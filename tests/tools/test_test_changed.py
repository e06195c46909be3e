"""The tests that a change selects, by the mirrored folders of code and tests."""

from __future__ import annotations

import pytest

from tools.test_changed import TIDY, find_tests, select

CELLAR = ["tests/inn/cellar/test_barrel.py", "tests/inn/cellar/test_shelf.py"]
BAR = "tests/inn/test_bar.py"
MENU = "tests/menu/test_prices.py"
DOCS = "tests/docs/test_readme.py"
SPARK = "tests/spark_bridge/test_reader.py"
OUTER = ["tests/test_layers.py", "tests/test_sign.py", TIDY]
TESTS = [*CELLAR, BAR, MENU, DOCS, SPARK, *OUTER]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("streamlog/inn/bar.py", [BAR]),
        ("streamlog/inn/cellar/barrel.py", CELLAR),
        ("streamlog/inn/cellar/shelf.pxd", CELLAR[::-1]),
        ("streamlog/inn/cellar/crates/lid.py", CELLAR),
        ("streamlog/menu.py", [MENU]),
        ("streamlog/sign.py", ["tests/test_sign.py"]),
        ("streamlog/street.py", OUTER),
        ("spark_bridge/reader.py", [SPARK]),
        (BAR, [BAR]),
        ("tests/inn/guests.py", [*CELLAR, BAR]),
        ("docs/joins.md", [DOCS]),
        ("README.md", [DOCS]),
        ("pyproject.toml", ["tests/test_layers.py"]),
        ("docs/images/flights.png", []),
    ],
)
def test_a_change_selects_the_tests_of_its_package(changed: str, tests: list[str]) -> None:
    assert find_tests(changed, TESTS) == tests


def test_a_change_runs_each_test_once_and_the_tidy_tests_last() -> None:
    assert select(["streamlog/inn/bar.py", BAR], TESTS) == [BAR, TIDY]


def test_a_change_without_tests_selects_none() -> None:
    assert select(["docs/images/flights.png"], TESTS) == []
