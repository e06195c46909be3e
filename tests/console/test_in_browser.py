"""The console of a broker in Chromium: pages have no errors, and update; axe finds no barrier."""

from __future__ import annotations

import asyncio
import os

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.console.browsers import check_all, chromium, needs_chromium, visit
from tests.console.consoles import console, fill, wait_for
from tests.console.test_console_site import GROUP, PAGES, prepare

pytestmark = [pytest.mark.slow, needs_chromium]
thorough = pytest.mark.skipif(
    os.environ.get("STREAMLOG_PROFILE") != "thorough", reason="STREAMLOG_PROFILE=thorough"
)
PAINT_MS = 1_000
TRIES = 3
LARGE = ("", "topics", "topics/topic-00000/partitions", "groups", "groups/group-0000", "brokers")


def test_every_page_works_in_a_browser_in_both_colours_and_two_widths() -> None:
    async def main() -> None:
        async with console() as (browser, log), chromium() as program:
            await prepare(log)
            await wait_for(browser, "/console/groups", GROUP)
            await check_all(program, browser.base_url, PAGES)
            async with visit(program, browser.base_url) as here:
                page = await here.page()
                await page.goto(f"{here.base}/console/topics")
                await fill(log, "page-views", b"x")
                await page.get_by_role("link", name="page-views").wait_for()

    asyncio.run(main())


async def fill_large(log: Log) -> None:
    """Create 2,000 topics of 5 partitions, and 1,000 groups that have read two of them each."""
    admin, names = log.admin(), [f"topic-{number:05}" for number in range(2_000)]
    for begin in range(0, len(names), 100):
        await admin.create_topics([NewTopic(name, 5) for name in names[begin : begin + 100]])
    for number in range(1_000):
        parts = [
            TopicPartition(names[(2 * number + each) % len(names)], partition)
            for each in range(2)
            for partition in range(5)
        ]
        await admin.alter_group_offsets(f"group-{number:04}", dict.fromkeys(parts, 0))


@thorough
def test_pages_of_a_large_cluster_are_painted_within_a_second(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def main() -> dict[str, float]:
        async with console() as (browser, log), chromium() as program:
            # After a look at so much, the next one is some time away.
            browser.timeout = 600
            await fill_large(log)
            await wait_for(browser, "/console/groups", "1,000 groups")
            found = dict[str, float]()
            for path in LARGE:
                times = []
                for _ in range(TRIES):
                    # A window of its own each time: nothing is in its cache.
                    async with visit(program, browser.base_url) as here:
                        page = await here.page()
                        await page.goto(f"{here.base}/console/{path}")
                        times.append(await page.evaluate(_PAINTED_MS))
                # The best: other programs on the machine only make it slower.
                found[path or "overview"] = min(times)
            return found

    found = asyncio.run(main())
    with capsys.disabled():
        shown = ", ".join(f"{path} {ms:.0f}" for path, ms in found.items())
        print(f"\nfirst paint in ms, at load {os.getloadavg()[0]:.1f}: {shown}")  # noqa: T201 - figures
    assert max(found.values()) < PAINT_MS


_PAINTED_MS = """() => new Promise((done) => new PerformanceObserver((list) => {
  const first = list.getEntriesByName("first-contentful-paint")[0];
  if (first) done(first.startTime);
}).observe({ type: "paint", buffered: true }))"""
