"""A worker's state on disk across starts: after a stop, a kill, damage and loss."""

from __future__ import annotations

import shutil
from pathlib import Path

from streamlog.log import Log
from streamlog.records.batch import LogRecord
from tests.worker.processes import STREAMLOG, attached, read_until, running

GUESTS = """
from streamlog import App

app = App("guests", log="embedded:./log", state_dir="./state", commit_interval="50ms")
users = app.topic("users", key=str, value=str, partitions=1)
visits = app.topic("visits", key=str, value=str, partitions=1)
greeted = app.topic("greeted", key=str, value=str, partitions=1)
table = app.table(users, name="users-table")
app.stream(visits).join(table, lambda visit, name: f"{visit} {name}").to(greeted)
"""
WORKER = (*STREAMLOG, "-A", "guests", "worker")
READY = r"rebalance: this worker has"
KEYS = 50
NAMED_A_ROUND = 20
START_MS = 1_700_000_000_000


class Guests:
    """Sends and reads round by round; the table has the names of all rounds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._round = 0
        self._names: dict[bytes, bytes] = {}

    def visit(self) -> None:
        """Name some guests, let all visit, and check that each is greeted by the newest name."""
        found = attached(self._url, self._greeted)
        assert found == self._names
        self._round += 1

    async def _greeted(self, log: Log) -> dict[bytes, bytes]:
        visit = b"visit-%d" % self._round
        async with log.producer() as producer:
            for number in range(NAMED_A_ROUND):
                key = b"user-%d" % ((self._round * NAMED_A_ROUND + number) % KEYS)
                self._names[key] = b"name-%d-%d" % (self._round, number)
                at_ms = START_MS + 2_000 * self._round
                await producer.send("users", self._names[key], key=key, timestamp_ms=at_ms)
            await producer.flush()
            for key in self._names:
                at_ms = START_MS + 2_000 * self._round + 1_000
                await producer.send("visits", visit, key=key, timestamp_ms=at_ms)

        def rows(records: list[tuple[int, LogRecord]]) -> dict[bytes, bytes]:
            pairs = ((r.key or b"", (r.value or b"").split(b" ")) for _, r in records)
            return {key: parts[1] for key, parts in pairs if parts[0] == visit}

        return rows(await read_until(log, "greeted", lambda r: len(rows(r)) == len(self._names)))


def test_state_survives_stop_kill_damage_and_loss(tmp_path: Path) -> None:
    (tmp_path / "guests.py").write_text(GUESTS)
    guests = Guests(f"embedded:{tmp_path}/log")
    task = tmp_path / "state" / "guests" / "0_0"
    for epoch, end in enumerate(("stop", "kill", "damage", "lose", "stop"), 1):
        with running(*WORKER, cwd=tmp_path) as worker:
            worker.line(READY)
            guests.visit()
            # After the loss, the count restarts.
            assert epochs(task) == [1 if epoch > 4 else epoch]
            if epoch == 4:
                assert "trying older state" in worker.output
            if end == "kill":
                worker.kill()
            else:
                assert worker.stop() == 0
        if end == "damage":
            (manifest,) = (task / str(epoch)).glob("MANIFEST-*")
            manifest.write_bytes(b"garbage" * 10)
        if end == "lose":
            shutil.rmtree(tmp_path / "state")


def epochs(task: Path) -> list[int]:
    return [int(each.name) for each in task.iterdir() if each.name.isdecimal()]
