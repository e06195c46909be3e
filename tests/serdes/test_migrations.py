"""Types that read the bytes of their older versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from streamlog import App, migration
from streamlog.blueprints.blueprint import Blueprint
from streamlog.blueprints.readability import is_readable
from streamlog.blueprints.topology_difference import difference
from streamlog.errors import SerdeError, TopologyError
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.serdes import form_of, serde_for
from streamlog.tables.state.changelog import apply_records
from streamlog.tables.stores.memory_store import MemoryStore


@dataclass
class TotalV1:
    cents: int


@dataclass
class TotalV2:
    euros: float
    sales: int = 0


class TotalV3(msgspec.Struct):
    euros: float
    currency: str
    sales: int = 0


class TotalV4(BaseModel):
    total: float


class TotalV5(TypedDict):
    amount: float


@migration
def to_v2(old: TotalV1) -> TotalV2:
    return TotalV2(old.cents / 100)


@migration
def to_v3(old: TotalV2) -> TotalV3:
    return TotalV3(old.euros, "EUR", old.sales)


@migration
def to_v4(old: TotalV3) -> TotalV4:
    return TotalV4(total=old.euros)


@migration
def to_v5(old: TotalV4) -> TotalV5:
    return {"amount": old.total}


V1, V2, V3 = TotalV1(150), TotalV2(1.5, 2), TotalV3(1.5, "EUR", 2)


@pytest.mark.parametrize(
    ("new", "old", "wanted"),
    [
        (TotalV2, V1, TotalV2(1.5)),
        (TotalV2, V2, V2),
        (TotalV3, V1, TotalV3(1.5, "EUR")),
        (TotalV3, V2, V3),
        (TotalV4, V1, TotalV4(total=1.5)),
        (TotalV5, V1, {"amount": 1.5}),
        (TotalV5, V3, {"amount": 1.5}),
    ],
)
def test_older_bytes_are_read_through_a_chain_of_migrations(
    new: Any, old: object, wanted: object
) -> None:
    assert serde_for(new).loads(serde_for(type(old)).dumps(old)) == wanted
    assert is_readable(form_of(serde_for(new)), form_of(serde_for(type(old))))


def test_values_are_written_in_the_new_type() -> None:
    assert serde_for(TotalV2).dumps(V2) == b'{"euros":1.5,"sales":2}'
    with pytest.raises(SerdeError, match="not TotalV3"):
        serde_for(TotalV3).loads(b'{"total":1}')


def test_state_readability_follows_chains_of_migrations() -> None:
    @dataclass
    class Later:
        amount: int

    globals()["Later"] = Later

    @migration
    def skipping(old: TotalV2) -> Later:
        return Later(int(old.euros))

    later, second = form_of(serde_for(Later)), form_of(serde_for(TotalV2))
    # TotalV2 reads TotalV1, and so does a type that migrates from TotalV2.
    assert is_readable(later, second)
    own = {key: part for key, part in dict(second).items() if key != "migrates"}  # type: ignore[call-overload]
    assert not is_readable({**dict(later), "migrates": [own]}, second)  # type: ignore[call-overload]
    assert not is_readable(second, form_of(serde_for(TotalV1)), is_key=True)
    assert is_readable(second, own, is_key=True)
    assert skipping(V2) == Later(1)


def app_of(total: type[Any]) -> App:
    def add(state: Any, value: int) -> Any:
        return TotalV2(state.euros + value) if total is TotalV2 else TotalV1(state.cents + value)

    add.__annotations__["return"] = total
    app = App("totals")
    app.stream(app.topic("sales", key=str, value=int)).group_by_key().aggregate(
        lambda: total(0), add, name="totals"
    )
    return app


def task_of(app: App, store: MemoryStore) -> Task:
    sub = app.topology().subtopologies[0]
    return Task(sub, TaskId(0, 0), partitions=dict.fromkeys(sub.inputs, 1), store=store)


def process_one(task: Task, store: MemoryStore, offset: int) -> None:
    record = LogRecord(offset, 5, b"k", (7).to_bytes(8))
    task.process({("sales", 0): [record]}, 0, ends={("sales", 0): offset + 1})
    apply_records(store, task.checkpoint(), next_offset=3 * offset + 3)


def test_a_new_program_reads_the_old_program_s_state() -> None:
    before, after = app_of(TotalV1), app_of(TotalV2)
    assert not difference(Blueprint.of(before.topology()), Blueprint.of(after.topology())).losses
    # The way back would lose the state.
    backward_losses = difference(
        Blueprint.of(after.topology()), Blueprint.of(before.topology())
    ).losses
    assert "migration" in str(backward_losses[0])
    store = MemoryStore()
    process_one(task_of(before, store), store, 0)
    task = task_of(after, store)
    assert dict(task.table("totals")) == {"k": TotalV2(0.07)}
    process_one(task, store, 1)
    assert dict(task_of(after, store).table("totals")) == {"k": TotalV2(7.07)}


def test_a_failing_migration_is_named_in_the_error() -> None:
    @dataclass
    class Strict:
        euros: int

    globals()["Strict"] = Strict

    @migration
    def exact(old: TotalV1) -> Strict:
        if old.cents % 100:
            raise ValueError(f"{old.cents} cents are no euros")
        return Strict(old.cents // 100)

    assert serde_for(Strict).loads(b'{"cents":200}') == Strict(2)
    with pytest.raises(SerdeError, match="migration 'exact' failed: ValueError: 150 cents"):
        serde_for(Strict).loads(b'{"cents":150}')


@dataclass
class Optional:
    cents: int = 0
    note: str = ""


@dataclass
class Used:
    other: int


@dataclass
class Versioned:
    version: Literal[2]
    cents: int


def test_ambiguous_late_or_untyped_migrations_are_refused() -> None:
    def to_optional(old: TotalV1) -> Optional:
        return Optional(old.cents)

    migration(to_optional)
    with pytest.raises(TopologyError, match=r"could be read as Optional.*version: Literal"):
        serde_for(Optional)
    serde_for(Used)
    with pytest.raises(TopologyError, match="declared too late"):
        migration(_to_used)
    with pytest.raises(TopologyError, match="TotalV2 already has a migration"):
        migration(to_v2)
    with pytest.raises(TopologyError, match="must be annotated"):
        migration(lambda old: old)
    with pytest.raises(TopologyError, match="can't be read"):
        migration(lambda: None)  # type: ignore[arg-type, misc]

    @migration
    def to_versioned(old: TotalV1) -> Versioned:
        return Versioned(2, old.cents)

    assert serde_for(Versioned).loads(b'{"cents":3}') == to_versioned(TotalV1(3))


def _to_used(old: TotalV1) -> Used:
    return Used(old.cents)
