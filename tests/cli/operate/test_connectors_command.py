"""`streamlog connectors` against a running Connect service."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import typer
from typer.main import get_command
from typer.testing import CliRunner

from streamlog.cli.operate.connectors_command import (
    ask_connect,
    complete_connectors,
    connectors,
)
from streamlog.cli.session import Session
from streamlog.log import Log
from tests.connect_service.running import worker_with_http


def with_service(directory: Path, use: Callable[[str], None]) -> None:
    """Run a service on a log of its own, and `use` with its URL, in a thread."""

    async def main() -> None:
        async with (
            asyncio.timeout(60),
            Log.open(f"embedded:{directory / 'log'}") as log,
            worker_with_http(log) as client,
        ):
            await asyncio.to_thread(use, f"http://{client.service.worker_id}")

    asyncio.run(main())


def test_what_is_wrong_with_a_file_is_a_list(tmp_path: Path) -> None:
    settings = {"connector.class": "Objects", "topics": "orders", "flush.every": "soon"}
    file = tmp_path / "out.json"

    def check(url: str) -> None:
        def validate() -> tuple[int, list[dict[str, str]]]:
            file.write_text(json.dumps({"name": "out", "config": settings}))
            arguments = ["validate", str(file), "--json", "--connect", url]
            result = CliRunner().invoke(connectors, arguments, obj=Session())
            return result.exit_code, json.loads(result.stdout)

        code, found = validate()
        assert code == 1
        assert {each["setting"] for each in found} == {"flush.every", "url"}
        assert all(each["error"] for each in found)
        settings.update({"flush.every": "1s", "url": f"{tmp_path}/out"})
        assert validate() == (0, [])
        ask_connect(url, "PUT", "/connectors/out/config", settings)
        context = typer.Context(get_command(connectors), obj=Session())
        context.params["connect"] = url
        assert complete_connectors(context, "o") == ["out"]
        assert complete_connectors(context, "x") == []
        context.params["connect"] = "http://127.0.0.1:1"
        assert complete_connectors(context, "o") == []

    with_service(tmp_path, check)
