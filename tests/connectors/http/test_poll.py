from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from streamlog.connect import ConnectError, Retriable, SourceOffset
from streamlog.connectors.http.poll import Poll
from streamlog.errors import ConfigError
from tests.connectors.http.servers import answering
from tests.connectors.runs import on_loop, reading


class Api:
    """A server with rows, in all of the ways that `Poll` knows."""

    def __init__(self, count: int) -> None:
        self.rows = [{"id": number} for number in range(1, count + 1)]
        self.requests: list[str] = []

    async def respond(self, request: Request) -> Response:
        self.requests.append(str(request.url))
        match request.url.path:
            case "/cursor":
                since = int(request.query_params.get("since", 0))
                return JSONResponse({"data": {"items": self.rows[since : since + 3]}})
            case "/pages":
                number = int(request.query_params.get("page", 0))
                page = self.rows[3 * number : 3 * number + 3]
                has_next = len(self.rows) > 3 * number + 3
                link = f'</pages?page={number + 1}>; rel="next"'
                return JSONResponse(page, headers={"Link": link} if has_next else {})
            case "/elsewhere":
                return JSONResponse([], headers={"Link": '<http://other/>; rel="next"'})
            case "/etag":
                etag = f'"{len(self.rows)}"'
                if request.headers.get("If-None-Match") == etag:
                    return Response(status_code=304)
                return JSONResponse(self.rows, headers={"ETag": etag})
        status = 503 if request.url.path == "/busy" else 200
        return Response(json.dumps(self.rows), status)


def ids(values: list[Any]) -> list[int]:
    return [value["id"] for value in values]


SETTINGS: dict[str, dict[str, Any]] = {
    "cursor": {
        "mode": "cursor",
        "records": "data.items",
        "cursor_field": "id",
        "cursor_parameter": "since",
    },
    "pages": {"mode": "pages"},
}


@pytest.mark.parametrize("mode", ["cursor", "pages"])
@pytest.mark.parametrize("kill_behind", [1, 2, 3])
@on_loop
async def test_each_row_is_read_once_in_order_over_kills(mode: str, kill_behind: int) -> None:
    api = Api(7)
    offset: SourceOffset | None = None
    read: list[int] = []
    async with answering(api.respond) as url:
        source = Poll(url=f"{url}/{mode}", every="1ms", key="id", **SETTINGS[mode])
        while len(read) < 20:
            async with reading(source, offset) as life:
                for _ in range(kill_behind):
                    await life.step()
                    life.commit()
                    if len(api.rows) < 20:
                        api.rows += [{"id": len(api.rows) + 1}]
                    if len(read) + len(life.values) >= len(api.rows):
                        break
                read += ids(life.values)
                assert [record.key for record in life.records] == ids(life.values)
                offset = life.offset
    assert read == [*range(1, 21)]


@pytest.mark.parametrize("path", ["whole", "etag"])
@on_loop
async def test_a_whole_answer_is_read_when_it_has_changed(path: str) -> None:
    api = Api(2)
    async with answering(api.respond) as url:
        async with reading(Poll(url=f"{url}/{path}", every="1ms")) as life:
            await life.take(2)
            asked = len(api.requests)
            api.rows += [{"id": 3}]
            assert ids(await life.take(5)) == [1, 2, 1, 2, 3]
            offset = life.offset
        async with reading(Poll(url=f"{url}/{path}", every="1ms"), offset) as life:
            api.rows = [{"id": 9}]
            assert ids(await life.take(1)) == [9], "the answer before was read in the first life"
    assert len(api.requests) > asked


@pytest.mark.parametrize(
    ("path", "settings", "message"),
    [
        ("cursor", {}, "answers with no list"),
        ("whole", {"records": "data.items"}, "no list at data.items"),
        ("elsewhere", {"mode": "pages"}, "which is another server"),
        ("whole", SETTINGS["cursor"] | {"records": "", "cursor_field": "x"}, "leads no further"),
    ],
)
@on_loop
async def test_answers_that_can_not_be_read_fail_the_task(
    path: str, settings: dict[str, Any], message: str
) -> None:
    async with answering(Api(2).respond) as url:
        with pytest.raises(ConnectError, match=message):
            async with reading(Poll(url=f"{url}/{path}", **settings)) as life:
                await life.step()


@on_loop
async def test_a_busy_server_is_asked_again() -> None:
    async with answering(Api(2).respond) as url:
        with pytest.raises(Retriable, match="503"):
            async with reading(Poll(url=f"{url}/busy")) as life:
                await life.step()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"url": "x"}, "is no URL"),
        ({"url": "http://x", "every": "0s"}, "must be longer than 0"),
        ({"url": "http://x", "mode": "cursor"}, "need each other"),
        ({"url": "http://x", "cursor_field": "id"}, "need each other"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Poll(**settings).check()
