"""Output of processors through a repartition topic, with crashes between steps of commits."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App, Processor, Record, kv_store
from streamlog.processing.outbox import SinkRecord
from streamlog.serdes import serde_for
from tests.processing.test_exactness import Cluster

Entry = tuple[int, str, int]
"""Partition, key, value."""


class Ledger(Processor[str, int, str, str]):
    """Forward an entry with a unique id to the account of each digit of the running total."""

    total = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        total = (self.total.get(record.key) or 0) + record.value
        self.total.put(record.key, total)
        for digit in str(total):
            self.ctx.forward(digit, f"{record.key} {total} {self.ctx.uuid()}")


def ledger_app() -> App:
    app = App("ledger")
    amounts = app.topic("amounts", key=str, value=int)
    (
        app.stream(amounts)
        .process(Ledger, name="ledger")
        .group_by_key()
        .aggregate(list, lambda entries, entry: [*entries, entry], name="entries")
    )
    return app


def entries(given_input: list[Entry], *, seed: int, crashes: int) -> dict[str, Counter[str]]:
    """Return the final entries of each digit's account."""
    cluster = Cluster(ledger_app().topology(), {"amounts": 2}, Random(seed))
    for partition, key, value in given_input:
        payload = serde_for(int).dumps(value)
        record = SinkRecord("amounts", partition, 0, key.encode(), payload)
        cluster.append("amounts", partition, record)
    cluster.run(crashes=crashes)
    found: dict[str, Counter[str]] = {}
    for task_id, task in cluster.tasks.items():
        if "entries" in cluster.subs[task_id].by_name:
            found.update({key: Counter(rows) for key, rows in task.table("entries")})
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.sampled_from(["a", "b", "c"]), st.integers(0, 99)),
        max_size=30,
    ),
    st.integers(0, 10_000),
)
def test_crashes_never_lose_double_or_change_an_entry(given_input: list[Entry], seed: int) -> None:
    found = entries(given_input, seed=seed, crashes=10)
    assert found == entries(given_input, seed=seed + 1, crashes=0)
    totals: defaultdict[tuple[int, str], int] = defaultdict(int)
    wanted: dict[str, Counter[str]] = defaultdict(Counter)
    for partition, key, value in given_input:
        totals[partition, key] += value
        for digit in str(totals[partition, key]):
            wanted[digit][f"{key} {totals[partition, key]}"] += 1
    texts = {
        digit: Counter(text.rsplit(" ", 1)[0] for text in rows.elements())
        for digit, rows in found.items()
    }
    assert texts == wanted
    assert all(count == 1 for rows in found.values() for count in rows.values())
