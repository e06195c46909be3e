"""Connectors of a real Connect service in the console: shown, paused, resumed; secrets hidden."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BrokerConfig
from streamlog.connect import names
from streamlog.console.connect_desk import ConnectAccess
from streamlog.console.pages.connector_pages import (
    ConnectorRow,
    TaskRow,
    connector,
    connectors,
    shown_setting,
    without_passwords,
)
from streamlog.errors import ConfigError
from streamlog.log import Log
from tests.connect_service.running import worker_with_http
from tests.console.consoles import Page, console

SOURCE = {
    "connector.class": "Numbers",
    "topic": "numbers",
    "tasks.max": "1",
    "count": "5",
}


@pytest.fixture(autouse=True)
def _connectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BUILT_IN", {"Numbers": "tests.connect_service.outside"})


def test_a_connector_is_shown_paused_and_resumed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log") as log, worker_with_http(log) as client:
            status, body = await client.ask("PUT", "/connectors/in/config", SOURCE)
            assert status == 201, body
            await client.until_state("in", "RUNNING", 1)
            at = (await client.get("/connectors/in/status"))["connector"]["worker_id"]
            async with console(BrokerConfig(web_connect=f"http://{at}")) as (browser, _):
                listed = Page((await browser.get("/console/connectors")).text).text
                assert "in source Numbers running 1 0" in listed
                page = Page((await browser.get("/console/connectors/in")).text)
                assert "Running" in page.text
                for action, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
                    done = await browser.post(
                        f"/console/connectors/in/{action}",
                        data=page.fields(),
                        follow_redirects=True,
                    )
                    assert done.url.path == "/console/connectors/in"
                    await client.until_state("in", state, 1)
                said = Page((await browser.get("/console/changes")).text).text
                assert "pause connector in done" in said
                refused = await browser.post("/console/connectors/none/pause", data=page.fields())
                assert "refuses (404)" in Page(refused.text).text

    asyncio.run(main())


def test_a_service_that_is_down_or_not_named_has_a_page_that_says_so() -> None:
    async def main(config: BrokerConfig) -> str:
        async with console(config) as (browser, _):
            return Page((await browser.get("/console/connectors")).text).text

    assert "web.connect" in asyncio.run(main(BrokerConfig()))
    assert "127.0.0.1:9" in asyncio.run(main(BrokerConfig(web_connect="http://127.0.0.1:9")))


def test_secrets_are_hidden_and_what_failed_comes_first() -> None:
    config = {"connection.password": "p1", "sasl.jaas.config": "p2", "key.converter": "shown"}
    failed = ConnectorRow(
        name="z",
        kind="sink",
        state="RUNNING",
        worker="w",
        trace="",
        tasks=(TaskRow(0, "FAILED", "w", "<b>first\nsecond"),),
        config=config,
    )
    text = connector(failed, "z", token="t").content.text
    assert "p1" not in text
    assert "p2" not in text
    assert "&lt;b&gt;first" in text
    well = ConnectorRow(
        name="a", kind="", state="RUNNING", worker="", trace="", tasks=(), config={}
    )
    listed = connectors([well, failed], {}).content.text
    assert listed.index("/console/connectors/z") < listed.index("/console/connectors/a")


def test_passwords_come_from_a_file_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"web\.connect"):
        ConnectAccess.of("http://ann:secret@127.0.0.1:8083")
    file = tmp_path / "connect"
    file.write_text("url=http://127.0.0.1:8083\nuser=ann\npassword=secret\n")
    assert ConnectAccess.of(str(file)) == ConnectAccess("http://127.0.0.1:8083", "ann", "secret")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://ann:s3cret@db:5432/shop", "postgresql://ann:***@db:5432/shop"),
        ("postgresql+psycopg://:p@ss@db", "postgresql+psycopg://:***@db"),
        ("jdbc:mysql://db/shop?user=ann&password=s3cret&ssl=1", "jdbc:mysql://db/shop?user=ann&password=***&ssl=1"),
        ("can't reach redis://x:s3cret@a:1, nor redis://x:s3cret@b:1",
         "can't reach redis://x:***@a:1, nor redis://x:***@b:1"),
        ("http://host:8083/a@b", "http://host:8083/a@b"),
        ("http://host:8083 asks ann@example.org", "http://host:8083 asks ann@example.org"),
        ("10:30 mail ann@example.org", "10:30 mail ann@example.org"),
    ],
)  # fmt: skip
def test_a_password_in_a_url_is_hidden(given: str, shown: str) -> None:
    assert without_passwords(given) == shown
    assert shown_setting("url", given) == shown
    assert shown_setting("ssl.key.password", given) is None
