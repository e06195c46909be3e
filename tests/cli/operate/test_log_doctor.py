"""`streamlog doctor --log URL`: findings as text and JSON, and its exit status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from streamlog import App
from streamlog.adviser.log_view import Diagnosis, LogView
from streamlog.cli.doctor import doctor
from streamlog.cli.operate import log_doctor
from streamlog.cli.session import Session
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import UnsupportedVersion
from streamlog.log import Log

OF_THIS_MACHINE = {"disk-full", "interpreted-modules", "few-descriptors"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a directory with a log, whose machine has no fault."""
    advise = log_doctor.advise

    def of_the_log(*args: LogView) -> list[Diagnosis]:
        return [each for each in advise(*args) if each.code not in OF_THIS_MACHINE]  # type: ignore[arg-type]

    monkeypatch.setattr(log_doctor, "advise", of_the_log)
    change(tmp_path, create=True)
    return tmp_path


def change(here: Path, *, create: bool = False, **settings: str) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{here}/log", listen=False) as log:
            if create:
                await log.admin().create_topics([NewTopic("t", 2)])
            changes = {name.replace("_", "."): value for name, value in settings.items()}
            if changes:
                await log.admin().alter_configs(changes, topic="t")

    asyncio.run(main())


def invoke(here: Path, *arguments: str, app: App | None = None) -> Any:
    room = typer.Typer()
    room.command()(doctor)
    at = ["--watch", "0", *arguments, "--log", f"embedded:{here}/log"]
    return CliRunner().invoke(room, at, obj=Session(app), catch_exceptions=False)


def test_a_healthy_log_exits_with_0(here: Path) -> None:
    result = invoke(here)
    assert (result.exit_code, result.output) == (
        0,
        "1 broker, 1 topic, 0 groups: nothing is wrong\n",
    )
    result = invoke(here, "--json")
    assert (result.exit_code, json.loads(result.output)) == (
        0,
        {"healthy": True, "findings": [], "unseen": [], "watched_s": 0.0},
    )


def test_what_was_not_seen_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unsupported(*_: object, **__: object) -> None:
        raise UnsupportedVersion("ListTransactions")

    monkeypatch.setattr(Admin, "list_transactions", unsupported)
    result = invoke(here)
    assert result.exit_code == 0
    assert result.output == (
        "not seen: transactions: these brokers do not support the request\n"
        "1 broker, 1 topic, 0 groups: nothing is wrong with what was seen\n"
    )


def test_findings_are_printed_with_their_command_and_exit_with_1(here: Path) -> None:
    change(here, unclean_leader_election_enable="true")
    command = (
        "streamlog configs alter --topic t --set unclean.leader.election.enable=false"
        f" --log embedded:{here}/log"
    )
    result = invoke(here)
    assert result.exit_code == 1
    assert result.output == (
        "critical: unclean-election: t\n"
        "  problem: unclean.leader.election.enable is true\n"
        "  if left: a replica that lacks acknowledged records may become leader, and they are"
        " lost\n"
        f"  mend:    {command}\n"
        "\n"
        "1 broker, 1 topic, 0 groups: 1 finding, 1 of them critical\n"
    )
    result = invoke(here, "--json")
    assert result.exit_code == 1
    (found,) = json.loads(result.output)["findings"]
    assert found["code"] == "unclean-election"
    assert found["remedy"] == command


def test_an_app_is_examined_on_its_log(here: Path) -> None:
    app = App("shop")
    app.table(app.topic("t", key=str, value=str)).changes().to(
        app.topic("rows", key=str, value=str)
    )
    assert "app shop: nothing is wrong" in invoke(here, app=app).output
    change(here, retention_ms="1000")
    result = invoke(here, app=app)
    assert result.exit_code == 1
    assert "warning: table-retention: topic t\n" in result.output


def test_json_without_a_log_describes_the_installation() -> None:
    room = typer.Typer()
    room.command()(doctor)
    found = CliRunner().invoke(room, ["--json"], obj=Session(), catch_exceptions=False)
    assert found.exit_code == 0
    assert json.loads(found.output)
