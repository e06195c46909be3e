"""A topic with a schema in a registry (docs/serdes.md)."""

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated

from streamlog import App
from streamlog.serdes import Digits


@dataclass
class Line:
    sku: str
    count: int = 1


@dataclass
class Invoice:
    number: str
    issued: datetime
    total: Annotated[Decimal, Digits(12, 2)]
    lines: list[Line] = field(default_factory=list)
    note: str | None = None


app = App("invoices", schema_registry="http://127.0.0.1:8081")
invoices = app.topic("invoices", key=str, value=Invoice, schema="avro")


def main() -> None:
    issued = datetime.fromisoformat("2025-01-01T00:00:00+00:00")
    invoice = Invoice("n-1", issued, Decimal("12.50"), [Line("tea")])
    with app.test() as t:
        t.input(invoices).send(invoice, key="n-1")
        assert t.output(invoices).values == [invoice]
