from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamlog.connectors.tail import Tail
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from tests.connectors.runs import RealContext, on_loop, reading
from tests.servers.nginx import NginxServer


@on_loop
async def test_each_log_of_a_pattern_is_a_part_whatever_rotation_calls_its_files(
    tmp_path: Path,
) -> None:
    for name in ("a.log", "a.log.1", "a.log.2.gz", "b.log", "b.log-20250131", "c.log.1", "d.txt"):
        (tmp_path / name).write_bytes(b"x\n")
    tail = Tail(path=f"{tmp_path}/*.log*")
    parts = await tail.partitions(RealContext())
    assert parts == [{"path": f"{tmp_path}/{name}.log"} for name in "abc"]


@on_loop
async def test_a_path_without_a_pattern_is_a_part_before_the_file_exists(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    async with reading(Tail(path=str(path), poll="1ms", path_header="file")) as life:
        waiting = asyncio.ensure_future(life.take(2))
        await asyncio.sleep(0)
        path.write_bytes(b"one\ntwo\nthr")
        assert await waiting == [b"one", b"two"]
        assert life.records[0].headers == (("file", str(path).encode()),)
        assert life.records[0].key is None


@on_loop
async def test_a_new_life_goes_on_behind_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntwo\n")
    tail = Tail(path=str(path), poll="1ms")
    async with reading(tail) as life:
        await life.take(2)
        with path.open("ab") as file:
            file.write(b"three\n")
        await life.step()  # Never committed.
        offset = life.offset
    async with reading(tail, offset) as life:
        await life.step()
        life.commit()
        assert await life.take(1) == [b"three"]


class RecordedPauses(RealContext):
    """A context whose pauses take no time, and are noted."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_ms: list[int] = []
        self.is_quiet = asyncio.Event()
        self.until_ms = 0

    async def sleep(self, time: Dur) -> None:
        self.pauses_ms.append(duration_ms(time))
        if sum(self.pauses_ms) >= self.until_ms:
            self.is_quiet.set()
        await asyncio.sleep(0)


@pytest.mark.parametrize(("poll_ms", "poll_max_ms"), [(200, 1_000), (7, 50), (1_000, 200)])
@on_loop
async def test_a_quiet_file_is_looked_at_less_often_until_it_is_written(
    tmp_path: Path, poll_ms: int, poll_max_ms: int
) -> None:
    path, context = tmp_path / "a.log", RecordedPauses()
    path.touch()
    tail = Tail(path=str(path), poll=f"{poll_ms}ms", poll_max=f"{poll_max_ms}ms")
    async with reading(tail, context=context) as life:
        await life.step()  # Where the file begins.
        for _ in range(2):
            context.pauses_ms.clear()
            context.is_quiet.clear()
            context.until_ms = 20 * max(poll_ms, poll_max_ms)
            waiting = asyncio.ensure_future(life.step())
            await context.is_quiet.wait()
            quiet_ms = 0
            for pause_ms in context.pauses_ms:
                assert poll_ms <= pause_ms <= max(poll_ms, min(quiet_ms / 10, poll_max_ms))
                quiet_ms += pause_ms
            assert context.pauses_ms[-1] == max(poll_ms, poll_max_ms)
            with path.open("ab") as file:
                file.write(b"line\n")
            await waiting


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "/var/log/"}, "names no file"),
        ({"path": "a", "record_bytes_max": 0}, "record_bytes_max=0"),
        ({"path": "a", "poll": "0s"}, "poll='0s' must be longer than 0"),
        ({"path": "a", "poll_max": "x"}, "not a duration"),
        ({"path": "a", "rotate_wait": "5"}, "has no unit"),
        ({"path": "a", "first_line": "("}, "is no regular expression"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tail(**settings).check()


@on_loop
async def test_every_request_to_nginx_is_read_once_over_its_rotations() -> None:
    with NginxServer() as server:
        log = server.access_log
        tail = Tail(path=str(log), poll="5ms", rotate_wait="300ms")
        expected: list[str] = []
        read: list[bytes] = []
        offset = None
        async with httpx.AsyncClient() as client:
            for life_number in range(4):
                async with reading(tail, offset) as life:
                    for _ in range(20):
                        expected.append(f"/{len(expected)}")
                        await client.get(f"{server.url}{expected[-1]}")
                    if life_number % 2:  # Twice while it reads, twice during a standstill.
                        rotate(log)
                        server.reopen_logs()
                    await life.take(1)
                    read += life.values
                    offset = life.offset
                if not life_number % 2:
                    rotate(log)
                    server.reopen_logs()
            async with reading(tail, offset) as life:
                read += await life.take(len(expected) - len(read))
    assert [line.split()[6].decode() for line in read] == expected


def rotate(log: Path) -> None:
    numbers = sorted((int(path.suffix[1:]) for path in log.parent.glob("access.log.*")), key=int)
    for number in reversed(numbers):
        log.with_name(f"access.log.{number}").rename(log.with_name(f"access.log.{number + 1}"))
    log.rename(log.with_name("access.log.1"))
