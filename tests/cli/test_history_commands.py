"""Commands for an app's history: it runs, is compared, and is handed over to a worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog

APP = """
from streamlog import App

app = App("shop", log="embedded:./log", state_dir="./state")
sales = app.topic("sales", key=str, value=int, partitions=2)
totals = app.topic("totals", key=str, value=int, partitions=1)
app.stream(sales).group_by_key().reduce(lambda a, b: a + b, name="sums").changes().to(totals)

@app.command()
async def feed() -> None:
    for n in range(6):
        await sales.send(n, key="ab"[n % 2], timestamp=1_000_000 + 1_000 * n)
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    return tmp_path


def test_a_history_is_handed_over_to_a_worker(directory: Path) -> None:
    shop = ("-A", "shop")
    assert streamlog(*shop, "feed", cwd=directory)[0] == 0
    code, output = streamlog(
        *shop, "backfill", "--until", "1970-01-01T00:16:43Z", "--id", "one", cwd=directory
    )
    assert code == 0, output
    assert "snapshot one: 2 tasks, 2 rows of state, 3 staged rows" in output
    code, output = streamlog(*shop, "compare", "one", "totals", cwd=directory)
    assert code in {1, 2}, output
    code, output = streamlog(*shop, "hand-over", "one", cwd=directory)
    assert code == 0, output
    assert "shop starts from snapshot one, with 2 rows of state" in output
    code, output = streamlog(*shop, "hand-over", "one", cwd=directory)
    assert (code, "nothing was changed" in output) == (0, True), output
    with running(*STREAMLOG, *shop, "worker", cwd=directory) as worker:
        found = attached(
            f"embedded:{directory / 'log'}",
            lambda log: read_until(log, "totals", lambda rows: len(rows) >= 6),
        )
        assert worker.stop() == 0
    assert sorted((row.key or b"", int.from_bytes(row.value or b"")) for _, row in found) == [
        (b"a", 0), (b"a", 2), (b"a", 6), (b"b", 1), (b"b", 4), (b"b", 9),
    ]  # fmt: skip
    code, output = streamlog(*shop, "compare", "one", "totals", cwd=directory)
    assert code == 0, output
    code, output = streamlog(*shop, "compare", "one", "totals", "--json", cwd=directory)
    assert code == 0, output
    assert json.loads(output) == {
        "topic": "totals",
        "is_equal": True,
        # The history ended before the last three records: their rows came later.
        "partitions": [
            {
                "partition": 0, "equal": 3, "only_staged": 0, "only_live": 0, "later": 3,
                "differences": [],
            }
        ],
    }  # fmt: skip


def test_a_missing_snapshot_is_reported(directory: Path) -> None:
    code, output = streamlog("-A", "shop", "hand-over", "nobody", cwd=directory)
    assert code != 0
    assert "there is no snapshot at" in output
