"""Chromium, and what it finds wrong with pages of a console.

Needs `pip install playwright` and `apt-get install chromium`, else the tests are skipped; for axe
also `AXE_CORE=axe.min.js`, out of `npm pack axe-core`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page

api = pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium")
AXE = os.environ.get("AXE_CORE", "")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium: apt-get install chromium"
)
LOOKS = (("light", 1400), ("dark", 390))
"""Colours and widths in pixels."""


class Said(Protocol):
    """A line that a page has written to the console of the browser."""

    @property
    def type(self) -> str: ...
    @property
    def text(self) -> str: ...


@dataclass
class Visit:
    """Pages opened in one window, and what was wrong with them."""

    context: BrowserContext
    base: str
    faults: list[str] = field(default_factory=list)

    async def page(self) -> Page:
        """Open an empty page, whose errors count."""
        page = await self.context.new_page()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        return page

    def _note(self, said: Said) -> None:
        if said.type == "error":
            self.faults.append(said.text)

    async def check(self, page: Page, path: str) -> None:
        """Go to a path, and note what is too wide or bars a reader."""
        answer = await page.goto(f"{self.base}{path}")
        if answer is None or answer.status != 200:
            self.faults.append(f"{path} answers {answer and answer.status}")
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.faults += [f"{path} is {wide} px too wide"] if wide > 0 else []
        if AXE:
            await page.add_script_tag(content=Path(AXE).read_text())  # noqa: ASYNC240
            found = await page.evaluate("axe.run().then((r) => r.violations)")
            self.faults += [
                f"{path}: {each['id']}: {each['nodes'][0]['html'][:200]}"
                for each in found
                if each["impact"] in {"serious", "critical"}
            ]


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run Chromium in the block."""
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visit(
    browser: Browser, base: object, colours: str = "light", width: int = 1400
) -> AsyncIterator[Visit]:
    """Open a window without cookies and cache; the block fails if its pages had faults."""
    context = await browser.new_context(
        color_scheme=colours,  # type: ignore[arg-type]
        viewport={"width": width, "height": 900},
        # The policy keeps axe out, as it keeps out everything else.
        bypass_csp=bool(AXE),
    )
    here = Visit(context, str(base).rstrip("/"))
    try:
        yield here
    finally:
        await context.close()
    assert here.faults == [], f"in {colours}, {width} px wide"


async def check_all(browser: Browser, base: object, paths: tuple[str, ...]) -> None:
    """Check pages in both colours, wide and narrow."""
    for colours, width in LOOKS:
        async with visit(browser, base, colours, width) as here:
            page = await here.page()
            for path in paths:
                await here.check(page, path)
