"""The agent of docs/from-flume.md carries lines to files, as an app and as a service."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from streamlog.connect.names import plugin_names
from streamlog.connect_service.configured import strange_settings
from streamlog.properties import parse_properties
from tests.connect_service.running import running

TEXT = (Path(__file__).parent.parent.parent / "docs/from-flume.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
FILES = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
LINES = [b"INFO a", b"DEBUG b", b"", b"ERROR c"]


def test_the_app_leaves_lines_out_and_names_their_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documented_agent.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    app = importlib.import_module("documented_agent").app
    with app.test() as driver:
        driver.source("logs").give(*LINES)
        assert driver.sink("lake").values == [b"INFO a", b"", b"ERROR c"]
        assert {each.headers for each in driver.sink("lake").records} == {(("host", b"web-1"),)}


def test_the_service_carries_lines_to_files_of_a_day(tmp_path: Path) -> None:
    logs, lake = tmp_path / "log", tmp_path / "lake"
    logs.mkdir()
    (logs / "shop.log").write_bytes(b"".join(line + b"\n" for line in LINES))

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "data") as client:
            for text in FILES:
                # Sooner than after ten minutes.
                text = text.replace("flush.every=10m", "flush.every=50ms")  # noqa: PLW2901
                settings = parse_properties(
                    text.replace("/var/log/shop", str(logs)).replace("/lake/events", str(lake)),
                    "documented",
                )
                assert strange_settings(settings) == []
                body = {"name": settings["name"], "config": settings}
                status, answer = await client.ask("POST", "/connectors", body)
                assert status == 201, answer
            await client.until_state("logs", "RUNNING", 1)
            await client.until_state("lake", "RUNNING", 1)
            await client.until(lambda: written(lake) == Counter(LINES))

    asyncio.run(main())
    assert written(lake) == Counter(LINES)
    assert all(re.fullmatch(r"dt=\d{4}-\d\d-\d\d", each.name) for each in lake.iterdir())


def written(lake: Path) -> Counter[bytes]:
    texts = [each.read_text() for each in lake.rglob("*.jsonl")]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return Counter(row["value"].encode() for row in rows)


def test_the_names_of_the_page_are_installed() -> None:
    tables = TEXT[: TEXT.index("## An agent")]
    named = set(re.findall(r"\[`(\w+)`\]\(connectors", tables))
    assert named <= {*plugin_names()}
    assert len(named) > 12
