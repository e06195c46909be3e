"""A log to test clients with: in this process, or the same one over TCP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from streamlog.client.admin import NewTopic
from streamlog.log import Log

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]


@pytest.fixture(params=["embedded", "tcp"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    """`async with open_log(t=4) as log`: a log with topic t of four partitions."""

    @asynccontextmanager
    async def opened(**topics: int) -> AsyncIterator[Log]:
        async with Log.open(f"embedded:{tmp_path / 'data'}") as served:
            new = [NewTopic(name, partitions) for name, partitions in topics.items()]
            if new:
                await served.admin().create_topics(new)
            if request.param == "embedded":
                yield served
                return
            assert served.address is not None
            host, port = served.address
            async with Log.open(f"kafka://{host}:{port}") as remote:
                yield remote

    return opened
