"""Which tests a change calls for: those of its room, found by the mirror of both trees."""

from __future__ import annotations

import pytest

from tools.test_changed import TIDY, find_tests, select

STORAGE = ["tests/broker/storage/test_log.py", "tests/broker/storage/test_segment.py"]
SERVER = "tests/broker/server/test_acceptor.py"
DOCS = "tests/docs/test_readme.py"
SPARK = "tests/spark_bridge/test_reader.py"
OUTER = ["tests/test_layers.py", "tests/test_record.py", TIDY]
TESTS = [*STORAGE, SERVER, DOCS, SPARK, *OUTER]


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("streamlog/broker/server/acceptor.py", [SERVER]),
        ("streamlog/broker/storage/log.py", STORAGE),
        ("streamlog/broker/storage/log/segment.pxd", STORAGE[::-1]),
        ("streamlog/broker/storage/repair/scan.py", STORAGE),
        ("spark_bridge/reader.py", [SPARK]),
        ("streamlog/record.py", ["tests/test_record.py"]),
        ("streamlog/errors.py", OUTER),
        (SERVER, [SERVER]),
        ("tests/broker/cases.py", [*STORAGE, SERVER]),
        ("docs/joins.md", [DOCS]),
        ("README.md", [DOCS]),
        ("pyproject.toml", ["tests/test_layers.py"]),
        ("docs/images/flights.png", []),
    ],
)
def test_a_change_calls_for_the_tests_of_its_room(changed: str, tests: list[str]) -> None:
    assert find_tests(changed, TESTS) == tests


def test_a_change_runs_each_test_once_and_the_tidy_tests_last() -> None:
    assert select(["streamlog/broker/server/acceptor.py", SERVER], TESTS) == [SERVER, TIDY]


def test_a_change_without_tests_selects_none() -> None:
    assert select(["docs/images/flights.png"], TESTS) == []
