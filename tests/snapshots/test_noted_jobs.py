"""Notes of histories: what was written is read, and nothing leads out of their directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.snapshots import SnapshotStore, noted_jobs
from streamlog.snapshots.job_notes import ComparisonNote, JobNote
from streamlog.snapshots.noted_jobs import JobNotes


def note(id_: str, app_id: str = "shop", began_ms: int = 1) -> JobNote:
    return JobNote(
        id=id_, app_id=app_id, engine="local", outputs="stage", plan="p", state="running",
        began_ms=began_ms, at_ms=2, total=3,
    )  # fmt: skip


def test_notes_are_read_newest_first_and_by_app(tmp_path: Path) -> None:
    notes = JobNotes(SnapshotStore(str(tmp_path)))
    for each in (note("a", began_ms=1), note("b", began_ms=5), note("c", "other")):
        notes.write(each)
    notes.compared("a", ComparisonNote("t/x", 4, is_equal=True, report="same"))
    (tmp_path / "jobs" / "b2").mkdir()
    (tmp_path / "jobs" / "b2" / "job.json").write_text("{")
    assert [each.id for each in notes.jobs("shop")] == ["b", "a"]
    assert [each.topic for each in notes.comparisons("a")] == ["t/x"]
    assert notes.comparisons("b") == []


@given(
    st.sampled_from(["..", ".", "../x", "a/b", "/etc", "a%2Fb", "."])
    | st.text(min_size=1, max_size=40)
)
def test_no_id_leads_out_of_the_directory(id_: str) -> None:
    name = noted_jobs._name(id_)
    assert "/" not in name
    assert name.strip(".")


def test_ids_that_differ_have_directories_that_differ() -> None:
    ids = ["a.b", "a%2Eb", "a/b", "a%2Fb", "A.b"]
    assert len({noted_jobs._name(each) for each in ids}) == len(ids)


def test_a_note_that_can_not_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "jobs").write_text("a file where the directory belongs")
    JobNotes(SnapshotStore(str(tmp_path))).write(note("a"))
    assert "history a" in caplog.text
