"""A topic of dicts with a schema by hand (docs/serdes.md)."""

from streamlog import App
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered import TopicSchema

ORDER = """
syntax = "proto3";
package com.acme;

message Order {
  string id = 1;
  optional string note = 2;
  repeated Line lines = 3;
}

message Line {
  string sku = 1;
  double price = 2;
}
"""

app = App("orders-by-hand", schema_registry="http://127.0.0.1:8081")
by_hand = TopicSchema("protobuf", schema=Schema(SchemaType.PROTOBUF, ORDER))
orders = app.topic("orders", key=str, value=dict, schema=by_hand)
amounts = app.topic("amounts", key=str, value=float)
app.stream(orders).map_values(lambda order: sum(each["price"] for each in order["lines"])).to(
    amounts
)


def main() -> None:
    order = {"id": "o-1", "lines": [{"sku": "a", "price": 1.5}, {"sku": "b", "price": 2.0}]}
    with app.test() as t:
        t.input(orders).send(order, key="o-1")
        assert t.output(amounts).values == [3.5]
