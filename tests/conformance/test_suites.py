"""Other projects' test suites: the verdict on their results, and its documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import document
from conformance.suites import kafka_python
from conformance.suites.__main__ import SUITES
from conformance.suites.cases import FAILED, NOT_RUN, PASSED, Case, Verdict, reasons, report

CASES = [
    Case("a", PASSED),
    Case("b", FAILED, "no b"),
    Case("c", NOT_RUN),
    Case("d", FAILED, "no d"),
]


def test_a_test_that_neither_passes_nor_is_excluded_is_a_fault() -> None:
    found = Verdict("Others", CASES, {"b": "known", "c": "known"})
    assert [case.name for case in found.passed] == ["a"]
    assert found.faults == ["d: failed: no d"]
    assert "Others: 1 passed, 1 failed, 2 left out." in report(found)
    assert "- `b`, `c`: known" in report(found)


def test_an_outdated_reason_is_a_fault() -> None:
    found = Verdict("Others", CASES[:1], {"a": "known", "z": "known"})
    assert found.faults == [
        "a: left out, but it passes",
        "z: left out, but the suite has no such test",
    ]


def test_a_test_that_was_not_run_needs_a_reason() -> None:
    assert Verdict("Others", CASES[2:3], {}).faults == ["c: not run: no reason given"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [("a\n", "no reason"), ("a: \n", "no reason"), ("a: x\na: y\n", "twice")],
)
def test_a_malformed_exclusion_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "left_out"
    path.write_text("# a comment\n\n" + text)
    with pytest.raises(ValueError, match=fault):
        reasons(path)


def test_the_exclusion_files_can_be_read() -> None:
    assert reasons(kafka_python.LEFT_OUT)


@pytest.mark.parametrize("name", SUITES)
def test_no_suite_fails_on_our_broker(name: str) -> None:
    text = document.DOCUMENT.read_text()
    begins, ends = (mark.format(f"suite {name}") for mark in (document.BEGINS, document.ENDS))
    section = text.partition(begins)[2].partition(ends)[0]
    assert " passed, 0 failed, " in section
