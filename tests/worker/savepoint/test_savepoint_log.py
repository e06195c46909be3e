"""The savepoint log: workers receive its requests, and listening is cheap."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.clock import ManualClock, SystemClock
from streamlog.log import Log
from streamlog.worker.savepoint import savepoint_log
from streamlog.worker.savepoint.savepoint_log import SavepointLog, SavepointWatch
from streamlog.worker.topics.savepoint_messages import SavepointRequest
from tests.worker.operations.test_hand_over import Looks


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the requests that clients of this process send."""
    sent: list[str] = []
    send = EmbeddedTransport.call

    async def counted(self: EmbeddedTransport, request: Any, *args: Any, **options: Any) -> Any:
        sent.append(type(request).__name__)
        return await send(self, request, *args, **options)

    monkeypatch.setattr(EmbeddedTransport, "call", counted)
    return sent


def test_listening_for_savepoints_needs_few_requests(tmp_path: Path, requests: list[str]) -> None:
    asyncio.run(listening(f"embedded:{tmp_path / 'log'}", requests))


async def listening(url: str, requests: list[str]) -> None:
    clock = ManualClock()
    hold = SavepointRequest(id="one", wall_ms=SystemClock().wall_ms(), reason="a test")
    async with (
        Log.open(url) as log,
        SavepointWatch(log, "shop", clock) as watch,
        SavepointLog(log, ["shop"], clock) as savepoints,
    ):
        assert await watch.look() is None
        requests.clear()
        for _ in range(savepoint_log.SEARCH_LOOKS - 1):
            clock.advance(savepoint_log.LOOK_MS)
            assert await watch.look() is None
        assert requests == []
        clock.advance(savepoint_log.LOOK_MS)
        assert await watch.look() is None
        assert requests == ["MetadataRequest"]
        await savepoints.write("shop", hold)
        clock.advance(savepoint_log.SEARCH_LOOKS * savepoint_log.LOOK_MS)
        await watch.look()
        assert watch.savepoint is not None
        assert watch.savepoint.request == hold
        requests.clear()
        for _ in range(20):
            await watch.look()
        # The one that waits at the broker.
        assert {*requests} <= {"FetchRequest"}
        assert len(requests) <= 2
        await savepoints.write(
            "shop", SavepointRequest(id="two", wall_ms=hold.wall_ms, reason="a test")
        )
        looks = Looks()
        while looks.more and watch.savepoint.id == "one":
            await looks.next()
            await watch.look()
        assert watch.savepoint.id == "two"
