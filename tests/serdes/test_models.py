"""Pydantic models as types of values, states and rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from streamlog import App, agg
from streamlog.blueprints.readability import is_readable
from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import JsonSerde, ModelSerde, form_of, serde_for


class Sale(BaseModel):
    model_config = ConfigDict(strict=True)

    shop: str
    amount: int = Field(alias="amountCents")
    note: str | None = None

    @field_validator("amount")
    @classmethod
    def _is_paid(cls, amount: int) -> int:
        if amount < 0:
            raise ValueError("a sale is paid by the customer")
        return amount


class More(Sale):
    tip: int = 0


class Needy(Sale):
    till: int


class Takings(BaseModel):
    total: int
    sales: int
    note: str = "none"


@dataclass
class Till:
    sales: list[Sale]


def sale(amount: int) -> Sale:
    return Sale(shop="ulm", amountCents=amount)


def test_aliases_and_validators_of_a_model_apply() -> None:
    serde = serde_for(Sale)
    assert isinstance(serde, ModelSerde)
    assert serde.dumps(sale(3)) == b'{"shop":"ulm","amountCents":3,"note":null}'
    for data, words in [
        (b'{"shop":"ulm","amountCents":-1}', "paid by the customer"),
        (b'{"shop":"ulm","amountCents":"3"}', "amountCents"),
        (b'{"shop":"ulm"}', "amountCents"),
        (b"{", "not Sale"),
    ]:
        with pytest.raises(SerdeError, match=words):
            serde.loads(data)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (list[Sale], [sale(1), sale(2)]),
        (dict[str, Sale], {"a": sale(1)}),
        (Sale | int, sale(1)),
        (Sale | None, sale(1)),
    ],
)
def test_models_can_be_parts_of_other_types(declared: Any, value: object) -> None:
    serde = serde_for(declared)
    assert isinstance(serde, ModelSerde)
    assert serde.loads(serde.dumps(value)) == value


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(SerdeError, match="Sale expected, got dict"):
        serde_for(Sale).dumps({"shop": "ulm"})
    wrong = sale(1)
    wrong.shop = 7  # type: ignore[assignment]
    with pytest.raises(SerdeError, match="can't be written as JSON"):
        serde_for(Sale).dumps(wrong)


def test_a_model_inside_another_class_is_refused_with_the_remedy() -> None:
    with pytest.raises(
        SerdeError, match=r"Sale is a pydantic model.*make Till a pydantic model too"
    ):
        serde_for(Till)


def test_readability_of_older_models_follows_their_fields() -> None:
    plain, more, needy = (form_of(serde_for(each)) for each in (Sale, More, Needy))
    assert is_readable(more, plain)
    assert is_readable(plain, more)
    assert not is_readable(needy, plain)
    assert isinstance(serde_for(int | bool), JsonSerde)


def test_models_can_be_values_states_and_rows() -> None:
    app = App("models")
    sales = app.topic("sales", key=str, value=Sale)
    grouped = app.stream(sales).group_by(lambda _, s: s.shop, name="by-shop")

    def larger(first: Sale, second: Sale) -> Sale:
        return first if first.amount > second.amount else second

    largest = grouped.reduce(larger, name="largest")
    takings = grouped.agg(Takings, name="takings", total=agg.sum("amount"), sales=agg.count())
    with pytest.raises(TopologyError, match="Sale has no field 'amuont'"):
        grouped.agg(Takings, name="wrong", total=agg.sum("amuont"), sales=agg.count())
    with pytest.raises(TopologyError, match="has no column for sales of Takings"):
        grouped.agg(Takings, name="wrong", total=agg.sum("amount"))
    with app.test() as t:
        for amount in (3, 5, 4):
            t.input(sales).send(sale(amount), key="x")
        t.restart()
        t.input(sales).send(sale(1), key="x")
        assert t.table(largest) == {"ulm": sale(5)}
        assert t.table(takings) == {"ulm": Takings(total=13, sales=4)}
