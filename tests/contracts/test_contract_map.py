"""The map of apps and topics, as text and as a picture."""

from __future__ import annotations

from streamlog.blueprints.picture import mermaid
from streamlog.blueprints.svg import svg
from streamlog.contracts.contract_findings import compare_contracts
from streamlog.contracts.contract_map import describe_map, map_topics, picture_of_map
from tests.contracts.apps import CONTRACTS, Line, billing, contract, fraud, shop


def test_a_topic_has_its_type_its_writers_and_its_readers() -> None:
    text = describe_map(map_topics(CONTRACTS, {"orders": 4, "rates": 1}))
    assert "orders  Order by str, 4 partitions\n" in text
    assert "  written by shop\n  read by    billing (orders-source), fraud (orders-source)" in text
    assert "rates  float by str, 1 partition\n  written by shop\n  read by    billing" in text
    assert "ids  str by OrderId\n  written by fraud (sink 1 after by-id)" in text


def test_what_does_not_fit_follows_the_topics() -> None:
    apps = [contract(shop()), contract(billing(Line))]
    text = describe_map(map_topics(apps), compare_contracts(apps))
    assert "\n! `shop` writes `orders` without field `price`; `billing` requires it\n" in text


def test_the_picture_has_an_arrow_for_each_use() -> None:
    picture = picture_of_map(map_topics(CONTRACTS), title="contracts")
    arrows = {(arrow.start, arrow.end) for arrow in picture.arrows}
    assert {
        ("app/shop", "topic/orders"),
        ("topic/orders", "app/billing"),
        ("topic/orders", "app/fraud"),
        ("app/billing", "topic/counts"),
    } <= arrows
    ids = {box.id for box in picture.boxes}
    assert {end for arrow in arrows for end in arrow} <= ids
    assert len(ids) == len(picture.boxes)


def test_the_picture_is_drawn_and_marks_what_does_not_fit() -> None:
    apps = [contract(shop()), contract(billing(Line)), contract(fraud())]
    picture = picture_of_map(map_topics(apps), compare_contracts(apps), title="contracts")
    marked = {box.id for box in picture.boxes if box.mark}
    assert marked == {"topic/orders", "app/billing"}
    drawn = svg(picture)
    assert all(f">{text}</text>" in drawn for text in ("orders", "billing", "Order by str"))
    assert mermaid(picture).startswith("flowchart LR\n")
