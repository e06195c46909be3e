"""The contracts command: on a log, and against exported documents."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlog import App
from streamlog.cli.operate.contracts_command import contracts
from streamlog.cli.session import Session
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.worker.task_deps import prepare_log
from tests.contracts.apps import Line, billing, fraud, shop


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A log on which three apps have started."""
    url = f"embedded:{tmp_path_factory.mktemp('contracts')}/log"

    async def start() -> None:
        async with Log.open(url, listen=False) as opened:
            for app in (shop(), billing(), fraud()):
                await prepare_log(app.program(), opened, log_url=url, web=None)

    asyncio.run(start())
    return url


def invoke(*arguments: str, app: App | None = None, code: int = 0) -> str:
    result = CliRunner().invoke(contracts, arguments, obj=Session(app), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def short_orders() -> App:
    app = App("shop")
    app.topic("orders", key=str, value=Line)
    return app


def test_apps_that_fit_end_with_code_0(log: str) -> None:
    assert invoke("check", "--log", log) == "3 apps fit each other\n"
    assert invoke("check", "--log", log, app=shop()) == "`shop` fits 2 other apps\n"


def test_a_break_ends_with_code_8_and_names_the_field(log: str) -> None:
    output = invoke("check", "--log", log, app=short_orders(), code=8)
    assert "! field `id` is gone from `orders`; `billing` and `fraud` read it\n" in output
    assert output.endswith("breaks between `shop` and 2 other apps\n")
    # Nothing was recorded.
    assert invoke("check", "--log", log) == "3 apps fit each other\n"


def test_an_app_can_be_left_out(log: str) -> None:
    ignored = ("--ignore", "billing", "--ignore", "fraud")
    assert "fits 0 other apps" in invoke("check", *ignored, "--log", log, app=short_orders())


def test_findings_are_printed_as_json(log: str) -> None:
    output = invoke("check", "--json", "--log", log, app=short_orders(), code=8)
    found: Any = json.loads(output)
    assert (found["app"], found["apps"]) == ("shop", ["billing", "fraud", "shop"])
    gone = next(each for each in found["findings"] if each["path"] == "id")
    assert gone["kind"] == "missing"
    assert gone["readers"] == ["billing", "fraud"]
    assert found["breaks"] == sum(each["breaks"] for each in found["findings"])


def test_documents_stand_in_for_a_log(log: str, tmp_path: Path) -> None:
    whole, one = tmp_path / "all.json", tmp_path / "fraud.json"
    assert invoke("export", "-o", str(whole), "--log", log).endswith("3 apps\n")
    invoke("export", "-o", str(one), app=fraud())
    assert json.loads(whole.read_text())["asyncapi"] == "3.0.0"
    assert json.loads(whole.read_text())["channels"]["orders"]["bindings"]["kafka"]["partitions"]
    for document, readers in ((whole, "`billing` and `fraud`"), (one, "`fraud`")):
        output = invoke("check", "--against", str(document), app=short_orders(), code=8)
        assert re.search(rf"field `id`.*; {readers} (read|requires) it", output)
    assert "fits 2" in invoke("check", "--against", str(whole), app=shop())


def test_a_missing_document_and_two_sources_are_refused(log: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        invoke("check", "--against", str(tmp_path / "none.json"))
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UsageError, match="one of them"):
        invoke("check", "--against", str(tmp_path / "a.json"), "--log", log)


def test_the_map_is_text_a_picture_or_data(log: str) -> None:
    text = invoke("map", "--log", log)
    assert "  written by shop\n  read by    billing (orders-source), fraud" in text
    assert "1 break" not in text
    assert "! `shop` writes `orders`" in invoke("map", "--log", log, app=short_orders())
    assert invoke("map", "--format", "svg", "--log", log).startswith("<svg ")
    assert invoke("map", "--format", "mermaid", "--log", log).startswith("flowchart LR")
    assert invoke("map", "--format", "dot", "--log", log).startswith("digraph")
    data: Any = json.loads(invoke("map", "--format", "json", "--log", log))
    assert "orders" in {topic["name"] for topic in data["topics"]}
