"""Histories in the console of a worker, and what is known of jobs that run, fail or fall silent."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App, Topic
from streamlog.console.app_pages import history_pages
from streamlog.console.app_pages.history_pages import SILENT_MS, JobLook, history
from streamlog.errors import StreamlogError
from streamlog.replace import replace
from streamlog.snapshots import SnapshotStore
from streamlog.snapshots.job_notes import PartitionNote
from streamlog.snapshots.noted_jobs import JobNotes
from tests.console.consoles import Page, wait_for
from tests.console.worker_consoles import worker_console
from tests.snapshots.test_noted_jobs import note


def build(path: Path, *, fails: bool = False) -> tuple[App, Topic[str, str]]:
    app = App("shop", log=f"embedded:{path}/log", commit_interval="20ms")
    app.state_dir = f"{path}/state"
    orders = app.topic("orders", key=str, value=str)
    prices = app.topic("prices", key=str, value=str)
    app.stream(orders).map_values(lambda v: str(1 // 0 if fails else len(v)), name="price").to(
        prices
    )
    return app, prices


@pytest.mark.parametrize("histories", [None, "memory://histories"])
def test_a_history_is_shown_with_its_plan_its_rows_and_its_comparison(
    tmp_path: Path, histories: str | None
) -> None:
    where = SnapshotStore(histories or f"{tmp_path}/snapshots")

    async def main() -> None:
        app, prices = build(tmp_path)
        app.histories = histories
        async with worker_console(app, tmp_path) as (browser, log):
            assert "No history of this app" in (await browser.get("/console/history")).text
            async with log.producer() as producer:
                for number in range(5):
                    await producer.send("orders", b"x", key=b"%d" % number)
            await wait_for(browser, "/console/topics/prices/groups", "prices")
            job = app.backfill(until="2999-01-01", outputs="stage", job_id="first", progress=False)
            await asyncio.to_thread(job.run)
            listed = Page(await wait_for(browser, "/console/history", "done")).text
            assert "first done" in listed
            assert "100%" in listed
            await asyncio.to_thread(job.compare, prices)
            page = Page((await browser.get("/console/history/first")).text).text
            assert "5 records of 5 offsets" in page
            assert "prices 5" in page
            assert "prices, history and live" in page
            assert "history of shop, engine local" in page
            assert "hand-over first" in page
            assert (await browser.get("/console/history/nowhere")).status_code == 404
            failing, _ = build(tmp_path, fails=True)
            failing.histories = histories
            bad = failing.backfill(until="2999-01-01", job_id="second", progress=False)
            with pytest.raises(StreamlogError):
                await asyncio.to_thread(bad.run)
            await wait_for(browser, "/console/history", "failed")
            failed = Page((await browser.get("/console/history/second")).text).text
            assert "ZeroDivisionError" in failed
            # Nothing of it counts, as before: its note is beside the snapshots, not one of them.
            assert where.names() == ["first", "jobs"]

    try:
        asyncio.run(main())
    finally:
        where.remove()


def test_a_job_that_runs_shows_its_progress_and_one_that_is_silent_says_so() -> None:
    runs = replace(note("a"), total=200, partitions=(PartitionNote("orders", 0, 50, 200),))
    job = JobLook(runs, now_ms=2 + SILENT_MS)
    page = Page(history(job, "a", {}).content.text).text
    assert "25%" in page
    assert "50 records of 200 offsets" in page
    late = JobLook(runs, now_ms=3 + SILENT_MS)
    assert "no news for 1 min" in Page(history_pages.histories([late], {}, "x").content.text).text
    assert "may have ended" in Page(history(late, "a", {}).content.text).text


def test_what_a_note_says_is_text(tmp_path: Path) -> None:
    notes = JobNotes(SnapshotStore(str(tmp_path)))
    notes.write(replace(note("<b>"), plan="<script>", error="<i>", state="failed"))
    (found,) = notes.jobs("shop")
    shown = history(JobLook(found, 0), "<b>", {}).content.text
    assert "<script>" not in shown
    assert "<i>" not in shown
