"""Chains: transforms named in a configuration, with predicates, and what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from typing import Any

import msgspec
import pytest

from streamlog.connect.schema_record import SchemaRecord
from streamlog.connect.transforms import RecordIsTombstone, transform_chain
from streamlog.connect.transforms.transform_chain import (
    ENTRY_POINTS,
    ChainStep,
    TransformChain,
    chain_of,
    find_transform,
    transform_names,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace

MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
KAFKA = "org.apache.kafka.connect.transforms."


def record(value: object, topic: str = "orders") -> SchemaRecord[object, object]:
    return SchemaRecord(
        key="k", value=value, timestamp=MIDNIGHT, topic=topic, partition=0, offset=7
    )


def test_transforms_run_in_the_order_of_their_aliases() -> None:
    chain = chain_of(
        {
            "transforms": "hide, name",
            "transforms.name.type": f"{KAFKA}RegexRouter",
            "transforms.name.regex": "(.*)",
            "transforms.name.replacement": "eu.$1",
            "transforms.hide.type": f"{KAFKA}MaskField$Value",
            "transforms.hide.fields": "card",
        }
    )
    changed = chain(record({"card": "4711", "sum": 5}))
    assert changed is not None
    assert (changed.topic, changed.value) == ("eu.orders", {"card": "", "sum": 5})


@pytest.mark.parametrize(("negate", "kept"), [("false", ["b"]), ("true", ["a"])])
def test_a_predicate_says_what_a_filter_drops(negate: str, kept: list[str]) -> None:
    chain = chain_of(
        {
            "transforms": "drop",
            "transforms.drop.type": "Filter",
            "transforms.drop.predicate": "isA",
            "transforms.drop.negate": negate,
            "predicates": "isA",
            "predicates.isA.type": f"{KAFKA}predicates.TopicNameMatches",
            "predicates.isA.pattern": "a",
        }
    )
    assert [topic for topic in "ab" if chain(record({}, topic)) is not None] == kept


def test_the_text_of_a_setting_is_trimmed_as_kafka_does() -> None:
    settings = {
        "transforms": "mask",
        "transforms.mask.type": f" {KAFKA}MaskField$Value",
        "transforms.mask.fields": "card",
        "transforms.mask.replacement": "\t x \u00a0\x00",
    }
    changed = chain_of(settings)(record({"card": "4711"}))
    assert changed is not None
    assert changed.value == {"card": "x \u00a0"}, "Java's trim knows no space behind ASCII"


def test_no_transforms_change_nothing() -> None:
    assert chain_of({}) == TransformChain()
    same = record({"a": 1})
    assert chain_of({})(same) is same


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"transforms": "a"}, "transforms.a: type=: there is no such transform"),
        ({"transforms": "a", "transforms.a.type": "Casting"}, "there are Cast, DropHeaders"),
        ({"transforms": "a", "transforms.a.type": "Cast"}, r"say Cast\$Key or Cast\$Value"),
        (
            {"transforms": "a", "transforms.a.type": "Filter$Key"},
            r"there is no Filter\$Key: write Filter",
        ),
        ({"transforms": "a,a", "transforms.a.type": "Filter"}, "an alias is there twice"),
        ({"transforms": "a", "transforms.a.type": "Cast$Value"}, "spec is missing"),
        (
            {"transforms": "a", "transforms.a.type": "Cast$Value", "transforms.a.spec": "b:int9"},
            "neither a type nor FIELD:TYPE",
        ),
        (
            {"transforms": "a", "transforms.a.type": "Filter", "transforms.a.predicate": "p"},
            "transforms.a.predicate=p",
        ),
        ({"predicates": "p", "predicates.p.type": "Is"}, "there is no such predicate"),
        (
            {
                "predicates": "p",
                "predicates.p.type": "TopicNameMatches",
                "predicates.p.pattern": "(",
            },
            "no regular expression",
        ),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        chain_of(settings)


def test_every_transform_and_predicate_is_listed_by_the_name_that_finds_it() -> None:
    names = dict(transform_names())
    assert len(names) == len(transform_names()) == 30
    assert set(names.values()) == {"transformation", "predicate"}
    for name, kind in names.items():
        found = find_transform(name) if kind == "transformation" else (None, None)
        assert found[1] == (name.partition("$")[2].lower() or None), name
    for kind in ("transformation", "predicate"):
        listed = [name for name, each in transform_names() if each == kind]
        assert listed == sorted(listed)
    assert names[f"{KAFKA}Cast$Key"] == "transformation"
    assert names[f"{KAFKA}predicates.HasHeaderKey"] == "predicate"


class Upper(msgspec.Struct, frozen=True, kw_only=True):
    suffix: str = ""

    def __call__(self, given: Any, /) -> Any:
        return replace(given, value=f"{given.value.upper()}{self.suffix}")


class Silent(msgspec.Struct, frozen=True):
    pass


def test_a_transform_of_another_package_is_found_by_its_entry_point(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        EntryPoint(name, f"{__name__}:{name}", ENTRY_POINTS)
        for name in ("Upper", "Silent", "KAFKA")
    ]
    monkeypatch.setattr(transform_chain, "entry_points", lambda group: entries)
    chain = chain_of(
        {"transforms": "up", "transforms.up.type": "Upper", "transforms.up.suffix": "!"}
    )
    changed = chain(record("a"))
    assert changed is not None
    assert changed.value == "A!"
    assert ("Upper", "transformation") in transform_names()
    with pytest.raises(ConfigError, match=r"^transforms\.a: Silent is no transform: it can't be"):
        chain_of({"transforms": "a", "transforms.a.type": "Silent"})
    with pytest.raises(ConfigError, match=r"no such transform; there are .*, KAFKA, .*, Upper, "):
        chain_of({"transforms": "a", "transforms.a.type": "KAFKA"})


def test_a_record_that_one_transform_leaves_out_gets_to_no_other() -> None:
    seen: list[object] = []
    chain = TransformChain((ChainStep("drop", lambda given: None), ChainStep("see", seen.append)))
    assert chain(record(1)) is None
    assert seen == []


def test_a_step_with_a_predicate_applies_where_it_holds() -> None:
    def drop(_: object, /) -> None:
        return None

    chain = TransformChain((ChainStep("drop", drop, RecordIsTombstone()),))
    assert chain(record(None)) is None
    assert chain(record(1)) is not None
    negated = TransformChain((ChainStep("drop", drop, RecordIsTombstone(), negate=True),))
    assert negated(record(None)) is not None
    assert negated(record(1)) is None
