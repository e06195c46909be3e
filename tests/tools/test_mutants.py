"""Mutants: each is one change that compiles; tests that miss it are told from those that see it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools import mutants
from tools.mutants import Mutant, chosen_tests, mutants_of, mutated, survivors_of

SOURCE = '''
"""A module."""
from typing import Final

LIMIT: Final = 10
"""A limit."""

def lowest(values: list[int], *, strict: bool = False) -> int | None:
    """Return one."""
    if not values or (strict and len(values) > LIMIT):
        raise ValueError(f"{len(values) + 1} values")
    found = values[0]
    for each in values:
        if each < found:
            found = each
    _log.info("found %d", 7)
    return found
'''


def test_each_mutant_is_one_change_of_its_line() -> None:
    found = mutants_of("lowest.py", SOURCE)
    changes = {str(each).removeprefix("lowest.py:") for each in found}
    assert changes == {
        "5: 10 becomes 11",
        "8: False becomes True",
        "10: Or becomes And",
        "10: not is left out",
        "10: And becomes Or",
        "10: Gt becomes GtE",
        "11: raise is left out",
        "12: 0 becomes 1",
        "14: Lt becomes LtE",
        "17: None is returned",
    }
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in found:
        changed = ast.unparse(mutated(SOURCE, mutant)).splitlines()
        differing = [a for a, b in zip(plain, changed, strict=True) if a != b]
        assert len(differing) == 1
        compile("\n".join(changed), "lowest.py", "exec")


def test_what_only_readers_see_is_left_alone() -> None:
    source = """
T = TypeVar("T", covariant=True)
N = Other("N", covariant=True)
def first(given, unused):
    del unused
    del given[0], given.field
    return True
"""
    assert [str(each) for each in mutants_of("first.py", source)] == [
        "first.py:3: True becomes False",
        "first.py:6: delete is left out",
        "first.py:6: 0 becomes 1",
        "first.py:7: True becomes False",
    ]


def test_a_mutant_survives_tests_that_do_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one_of_two.py").write_text("def larger(a, b):\n    return a if a > b else b\n")
    (tmp_path / "test_weak.py").write_text(
        "from one_of_two import larger\ndef test(): assert larger(1, 1) == 1\n"
    )
    (tmp_path / "test_strong.py").write_text(
        "from one_of_two import larger\ndef test(): assert larger(2, 1) == larger(1, 2) == 2\n"
    )
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = mutants_of("one_of_two.py", (tmp_path / "one_of_two.py").read_text())
    assert [each.change for each in found] == ["None is returned", "Gt becomes GtE"]

    def alive(tests: str) -> set[str]:
        return {each.change for each in survivors_of(found, lambda _: [tests], jobs=2)}

    # For two values, `>=` means the same as `>`.
    assert alive("test_strong.py") == {"Gt becomes GtE"}
    assert alive("test_weak.py") == {"Gt becomes GtE"}
    (tmp_path / "test_weak.py").write_text("def test(): pass\n")
    assert alive("test_weak.py") == {"None is returned", "Gt becomes GtE"}


def test_the_chosen_tests_a_line_begin_with_those_of_its_module() -> None:
    mutant = Mutant("streamlog/connect/parts.py", 7, "a change", 0)
    reached = {
        ("streamlog/connect/parts.py", 7): ["tests/a/test_sink.py::x", "tests/a/test_parts.py::y"],
        ("streamlog/connect/parts.py", 9): ["tests/a/test_other.py::z"],
    }
    assert chosen_tests(mutant, reached, ["tests"]) == [
        "tests/a/test_parts.py::y",
        "tests/a/test_sink.py::x",
    ]
    # A line that runs at import is seen by all.
    constant = Mutant("streamlog/connect/parts.py", 1, "a change", 0)
    assert chosen_tests(constant, reached, ["tests"]) == [
        "tests/a/test_parts.py",
        "tests/a/test_other.py",
        "tests/a/test_sink.py",
    ]
