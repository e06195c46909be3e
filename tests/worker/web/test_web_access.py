"""An app whose workers have users and TLS: what is open, and what asks for a password."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from dataclasses import replace
from pathlib import Path

import pytest

from streamlog import App
from streamlog.connect_service.rest_site import site_of
from streamlog.connectors.memory import MemoryRows, MemorySink
from streamlog.errors import ConfigError
from streamlog.http_access import user_file
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.guarded_server import trusting
from streamlog.http_access.peer_signatures import signed_headers
from streamlog.http_access.user_file import read_users, set_user
from streamlog.worker.program import WorkerStart
from streamlog.worker.web.peer_http import PeerCall, call_peer
from streamlog.worker.worker import Worker
from tests.broker.certificates import certificates

KEYS = [f"key-{number}" for number in range(8)]
ANN = {"authorization": "Basic " + b64encode(b"ann:secret").decode()}


async def ask(
    web: str, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    call = PeerCall(method=method, target=target, headers=headers, body=body)
    tls = trusting(certificates().authority)
    return await call_peer(web, call, answer_bytes_max=10_000_000, tls=tls)


async def is_closed(web: str, users: Path) -> None:
    pages = ("/page", "/peer/page", "/peer/row/", "//peer/row", "/connect")
    for target in ("/tables", "/tables/texts/x", "/metrics", "/hot-keys", *pages):
        assert (await ask(web, "GET", target))[0] == 401, target
    assert (await ask(web, "GET", "/connect/connectors"))[0] == 401
    assert (await ask(web, "PUT", "/connect/connectors/out/stop"))[0] == 401
    assert (await ask(web, "PUT", "/tables/texts/x", b"1"))[0] == 401
    for target in ("/live", "/ready", "/connect/health"):
        assert (await ask(web, "GET", target))[0] in {200, 503}, target
    # Rows that only workers ask for: by the key that they share, and for this request alone.
    assert (await ask(web, "POST", "/peer/row", b"x", **ANN))[0] == 403
    key = read_users(users).workers_key or b""
    for made, status in ((bytes(32), 403), (key, 400)):
        signed = signed_headers(made, "POST", "/peer/row", b"x", wall_ms=_wall_ms())
        assert (await ask(web, "POST", "/peer/row", b"x", **signed))[0] == status
        assert (await ask(web, "POST", "/peer/rows", b"x", **signed))[0] == 403


def _wall_ms() -> int:
    from streamlog.clock import SystemClock  # noqa: PLC0415 - of this line alone

    return SystemClock().wall_ms()


def test_workers_with_users_answer_each_other_and_those_who_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    files, users = certificates(), tmp_path / "users"
    set_user(users, "ann", "secret")
    app = App(
        "shop",
        commit_interval="20ms",
        web="127.0.0.1:0",
        web_access=HttpAccess(users_file=str(users), certificate=files.broker, ca=files.authority),
        consumer={"heartbeat.interval.ms": 50},
    )
    texts = app.topic("texts", key=str, value=str, partitions=4)
    app.table(texts)
    app.sink(texts, MemorySink(into=MemoryRows()), name="out")

    @app.page("/page")
    async def page() -> str:
        return "a page"

    async def worker(number: int, web: asyncio.Future[str], stop: asyncio.Event) -> None:
        def announce(start: WorkerStart) -> None:
            web.set_result(str(start.web))

        program = replace(app.program(), state_dir=f"{tmp_path}/state-{number}")
        log_url = f"embedded:{tmp_path}/log"
        await Worker(program, log_url=log_url, announce=announce, connect_site=site_of).run(stop)

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        at = [loop.create_future() for _ in range(2)]
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for number, future in enumerate(at):
                group.create_task(worker(number, future, stop))
                await future
            webs = [await each for each in at]
            for key in KEYS:
                put = await ask(
                    webs[0], "PUT", f"/tables/texts/{key}", json.dumps(key).encode(), **ANN
                )
                assert put[0] == 200, put
            # Some of them are the other worker's, whichever is asked.
            for web in webs:
                for key in KEYS:
                    found = await ask(web, "GET", f"/tables/texts/{key}", **ANN)
                    assert (found[0], json.loads(found[1])["value"]) == (200, key)
            assert (await ask(webs[1], "GET", "/page", **ANN)) == (200, b"a page")
            assert (await ask(webs[1], "GET", "/connect/connectors", **ANN)) == (200, b'["out"]')
            for web in webs:
                await is_closed(web, users)
            both = [await ask(web, "GET", "/metrics", **ANN) for web in webs]
            tasks = [text.count(b"streamlog_task_state_bytes{") for _, text in both]
            assert sorted(tasks) == [2, 2], "each had rows that the other one was asked for"
            stop.set()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, r"users \(--web-users FILE\) and TLS \(--web-certificate PEM\)"),
        ({"users_file": "{users}"}, r"needs TLS"),
        ({"certificate": "{pem}"}, r"needs users"),
        ({"users_file": "missing", "is_insecure": True}, r"users in missing can't be read"),
        ({"users_file": "{bare}", "is_insecure": True}, r"lacks the line :workers:KEY"),
    ],
)
def test_an_app_that_others_reach_needs_users_and_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str | bool], why: str
) -> None:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    users, bare = tmp_path / "users", tmp_path / "bare"
    set_user(users, "ann", "secret")
    bare.write_text("".join(users.read_text().splitlines(keepends=True)[2:]))
    paths = {"users": str(users), "bare": str(bare), "pem": certificates().broker}
    given = {
        name: value.format(**paths) if isinstance(value, str) else value
        for name, value in settings.items()
    }
    access = HttpAccess(**given)  # type: ignore[arg-type]
    app = App("open", log=f"embedded:{tmp_path}/log", web="0.0.0.0:0", web_access=access)
    worker = Worker(app.program(), log_url=app.log, announce=lambda _start: None)
    with pytest.raises(ConfigError, match=why):
        asyncio.run(worker.run(asyncio.Event()))
