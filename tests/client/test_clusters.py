"""Every excluded test exists, and its exclusion has a reason."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.client.clusters import EVERY_TEST, NOT_ON_KAFKA, NOT_ON_MOCK, reason

HERE = Path(__file__).parent


def names_in(module: str) -> set[str]:
    files = sorted(HERE.rglob(f"{module}.py"))
    assert files, f"there is no module {module}"
    found = [each for file in files for each in ast.parse(file.read_text()).body]
    return {each.name for each in found if isinstance(each, ast.FunctionDef)}


@pytest.mark.parametrize("left_out", [NOT_ON_MOCK, NOT_ON_KAFKA], ids=["mock", "kafka"])
def test_only_existing_tests_are_excluded(left_out: dict[str, dict[str, str]]) -> None:
    for module, reasons in left_out.items():
        assert set(reasons) - {EVERY_TEST} <= names_in(module)
        assert all(reasons.values())


def test_a_whole_module_may_be_excluded() -> None:
    left_out = {"a": {EVERY_TEST: "all of it"}, "b": {"test_x": "one"}}
    assert reason(left_out, "a", "test_x") == "all of it"
    assert reason(left_out, "b", "test_x") == "one"
    assert reason(left_out, "b", "test_y") == ""
    assert reason(left_out, "c", "test_x") == ""
