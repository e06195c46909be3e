"""What all rows carry: orders, whose JSON has 200 bytes, and datagrams of syslog."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

RECORD_BYTES = 200
CUSTOMERS = 1_000
TABLE = "id bigint PRIMARY KEY, customer text, cents bigint, paid boolean, note text"
"""The columns of a table of orders."""
SYSLOG_5424 = (
    b"<165>1 2026-01-02T03:04:05.678Z web-1.example.com shop 8710 ID47 "
    b'[order@32473 id="1234" customer="customer-007"][site@32473 name="north"] '
    b"an order was placed, paid by card and handed over to the warehouse"
)
"""With structured data, and about 200 bytes."""


class Order(msgspec.Struct, frozen=True):
    """An order."""

    id: int
    customer: str
    cents: int
    paid: bool
    note: str


_encode = msgspec.json.Encoder().encode
_BLANK_BYTES = len(_encode(Order(0, "customer-000", 0, paid=True, note="")))


def order(number: int) -> Order:
    """Return an order; its number is its id."""
    cents = number * 7_919 % 1_000_000
    digits = len(str(number)) + len(str(cents)) - 2
    is_paid = number % 3 != 0
    pad = RECORD_BYTES - _BLANK_BYTES - digits - (not is_paid)
    return Order(number, f"customer-{number % CUSTOMERS:03}", cents, is_paid, "x" * pad)


def encoded(numbers: range) -> Iterator[bytes]:
    """Yield the JSON of orders."""
    return map(_encode, map(order, numbers))
