"""The console in Chromium: no error on any page, updates arrive, and axe finds no barrier.

Needs `pip install playwright` and `apt-get install chromium`, else skipped; for axe also
`AXE_CORE=axe.min.js`, out of `npm pack axe-core`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.console.consoles import console, fill, wait_for
from tests.console.test_console_site import GROUP, PAGES, prepare

api = pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium")
AXE = os.environ.get("AXE_CORE", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
]


def test_every_page_works_in_a_browser_in_both_colours_and_two_widths() -> None:
    faults: list[str] = []

    def note(said: Any) -> None:
        if said.type == "error":
            faults.append(said.text)

    async def main() -> None:
        async with console() as (browser, log), api.async_playwright() as playwright:
            await prepare(log)
            await wait_for(browser, "/console/groups", GROUP)
            chromium = await playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox"]
            )
            for colours, width in (("light", 1400), ("dark", 390)):
                context = await chromium.new_context(
                    color_scheme=colours,
                    viewport={"width": width, "height": 900},
                    # The policy keeps axe out, as it keeps out everything else.
                    bypass_csp=bool(AXE),
                )
                page = await context.new_page()
                page.on("console", note)
                page.on("pageerror", lambda error: faults.append(str(error)))
                for path in PAGES:
                    await page.goto(str(browser.base_url.join(path)))
                    wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
                    faults.extend([f"{path} is {wide} px too wide"] if wide > 0 else [])
                    if AXE:
                        await page.add_script_tag(content=Path(AXE).read_text())  # noqa: ASYNC240
                        found = await page.evaluate("axe.run().then((r) => r.violations)")
                        faults.extend(
                            f"{path} {colours}: {each['id']}: {each['nodes'][0]['html'][:200]}"
                            for each in found
                            if each["impact"] in {"serious", "critical"}
                        )
                await context.close()
            page = await chromium.new_page()
            await page.goto(str(browser.base_url.join("/console/topics")))
            await fill(log, "page-views", b"x")
            await page.get_by_role("link", name="page-views").wait_for()
            await chromium.close()

    asyncio.run(main())
    assert faults == []
