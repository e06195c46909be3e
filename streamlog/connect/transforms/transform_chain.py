"""TransformChain: the transforms of a connector's configuration, in their order.

`transforms=a,b` names aliases; `transforms.a.type` is the class, `transforms.a.predicate` and
`.negate` say when it applies, and what else is behind `transforms.a.` are its settings. Predicates
are named in the same way.
Other packages add transforms by entry points in the group `streamlog.transforms`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Final, TypeAlias

import msgspec

from streamlog.connect.connector_settings import read_settings
from streamlog.connect.setting_types import read_setting
from streamlog.connect.source import Transform
from streamlog.connect.transforms.field_transforms import (
    ExtractField,
    Flatten,
    HoistField,
    InsertField,
    ReplaceField,
    SetSchemaMetadata,
    ValueToKey,
)
from streamlog.connect.transforms.header_transforms import DropHeaders, HeaderFrom, InsertHeader
from streamlog.connect.transforms.key_or_value import KeyOrValue
from streamlog.connect.transforms.new_record_state import ExtractNewRecordState
from streamlog.connect.transforms.predicates import (
    AnyPredicate,
    FilterTransform,
    HasHeaderKey,
    RecordIsTombstone,
    TopicNameMatches,
)
from streamlog.connect.transforms.routing import RegexRouter, TimestampRouter
from streamlog.connect.transforms.timestamp_converter import TimestampConverter
from streamlog.connect.transforms.value_transforms import Cast, MaskField
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import AnyRecord

ENTRY_POINTS: Final = "streamlog.transforms"
"""The group of the entry points of transforms in other packages."""
TransformClass: TypeAlias = type[msgspec.Struct]
PACKAGE: Final = "org.apache.kafka.connect.transforms."
DEBEZIUM: Final = "io.debezium.transforms."
TRANSFORMS: Final[Mapping[str, TransformClass]] = {
    "Filter": FilterTransform,
    **{
        each.__name__: each
        for each in (
            Cast,
            DropHeaders,
            ExtractField,
            ExtractNewRecordState,
            Flatten,
            HeaderFrom,
            HoistField,
            InsertField,
            InsertHeader,
            MaskField,
            RegexRouter,
            ReplaceField,
            SetSchemaMetadata,
            TimestampConverter,
            TimestampRouter,
            ValueToKey,
        )
    },
}
"""Kafka's transforms and Debezium's, by the last part of their names."""
PREDICATES: Final[Mapping[str, type[AnyPredicate]]] = {
    each.__name__: each for each in (HasHeaderKey, RecordIsTombstone, TopicNameMatches)
}

_TRIMMED: Final = "".join(map(chr, range(ord(" ") + 1)))
"""What Java's `trim` takes off: the space and every character before it."""


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One transform of a chain, and when it applies."""

    alias: str
    transform: Transform
    predicate: AnyPredicate | None = None
    negate: bool = False

    def applies_to(self, record: AnyRecord) -> bool:
        """Return whether the predicate lets a record through to the transform."""
        return self.predicate is None or self.predicate.holds(record) is not self.negate


@dataclass(frozen=True, slots=True)
class TransformChain:
    """Transforms one behind the other; itself a transform."""

    steps: Sequence[ChainStep] = ()

    def __call__(self, record: AnyRecord, /) -> AnyRecord | None:
        """Return the record behind the last transform, or None if one left it out."""
        for step in self.steps:
            if step.applies_to(record):
                changed = step.transform(record)
                if changed is None:
                    return None
                record = changed
        return record


def chain_of(settings: Mapping[str, str]) -> TransformChain:
    """Return the transforms that a connector's configuration names.

    Raises:
        ConfigError: one is not known, or its settings are wrong; the message begins with its alias.
    """
    # All predicates are read, those that no transform refers to as well: a fault in one of them is
    # a typing error that would show only later.
    predicates = {
        alias: _predicate(alias, _behind(settings, f"predicates.{alias}."))
        for alias in _aliases(settings, "predicates")
    }
    return TransformChain(
        tuple(
            _step(alias, _behind(settings, f"transforms.{alias}."), predicates)
            for alias in _aliases(settings, "transforms")
        )
    )


def transform_names() -> list[tuple[str, str]]:
    """Return the names of transforms and predicates, with the types that Connect's API gives them.

    Those of Kafka Connect have its names; one of the key or the value has two.
    """
    names = [
        f"{PACKAGE}{name}{side}"
        for name, made in TRANSFORMS.items()
        for side in (("$Key", "$Value") if issubclass(made, KeyOrValue) else ("",))
    ]
    names += [each.name for each in entry_points(group=ENTRY_POINTS)]
    return [
        *((name, "transformation") for name in sorted(names)),
        *((f"{PACKAGE}predicates.{name}", "predicate") for name in sorted(PREDICATES)),
    ]


def find_transform(name: str) -> tuple[TransformClass, str | None]:
    """Return a transform's class by the name of Java's or ours, and on what it works.

    Raises:
        ConfigError: there is none of this name.
    """
    # A name is looked up in tables and never imported: a configuration that comes over REST must
    # not choose which code a worker loads.
    bare, _, side = name.removeprefix(PACKAGE).removeprefix(DEBEZIUM).partition("$")
    found = TRANSFORMS.get(bare)
    if found is None:
        entries = {each.name: each for each in entry_points(group=ENTRY_POINTS)}
        entry = entries.get(name)
        loaded: object = None if entry is None else entry.load()
        if not isinstance(loaded, type) or not issubclass(loaded, msgspec.Struct):
            known = ", ".join(sorted({*TRANSFORMS, *entries}))
            raise ConfigError(f"type={name}: there is no such transform; there are {known}")
        return loaded, None
    if issubclass(found, KeyOrValue):
        if side not in ("Key", "Value"):
            raise ConfigError(f"type={name}: say {bare}$Key or {bare}$Value")
        return found, side.lower()
    if side:
        raise ConfigError(
            f"type={name}: {bare} takes whole records, so there is no {bare}${side}: write {bare}"
        )
    return found, None


def _step(alias: str, own: Mapping[str, str], predicates: Mapping[str, AnyPredicate]) -> ChainStep:
    where = f"transforms.{alias}"
    named = own.get("predicate")
    if named is not None and named not in predicates:
        raise ConfigError(f"{where}.predicate={named}: no such alias is among the predicates")
    try:
        kind, side = find_transform(own.get("type", ""))
        # `type`, `predicate` and `negate` are the step's. Kafka reserves these names as well.
        given = {key: text for key, text in own.items() if key not in _OF_STEP}
        if side is not None:
            given["on"] = side
        made = read_settings(kind, given)
        negate = bool(read_setting(own.get("negate", "false"), bool))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    if not callable(made):
        raise ConfigError(f"{where}: {kind.__name__} is no transform: it can't be called")
    return ChainStep(alias, made, None if named is None else predicates[named], negate)


_OF_STEP: Final = frozenset({"type", "predicate", "negate"})


def _predicate(alias: str, own: Mapping[str, str]) -> AnyPredicate:
    where, name = f"predicates.{alias}", own.get("type", "")
    kind = PREDICATES.get(name.removeprefix(f"{PACKAGE}predicates."))
    if kind is None:
        raise ConfigError(
            f"{where}.type={name}: there is no such predicate; there are"
            f" {', '.join(sorted(PREDICATES))}"
        )
    try:
        return read_settings(kind, {key: text for key, text in own.items() if key != "type"})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _aliases(settings: Mapping[str, str], name: str) -> list[str]:
    found = [each.strip() for each in settings.get(name, "").split(",") if each.strip()]
    if len(set(found)) < len(found):
        raise ConfigError(f"{name}={settings[name]}: an alias is there twice")
    return found


def _behind(settings: Mapping[str, str], prefix: str) -> dict[str, str]:
    # Kafka trims the text of every setting, so " 7 " masks a field as "7".
    return {
        key.removeprefix(prefix): text.strip(_TRIMMED)
        for key, text in settings.items()
        if key.startswith(prefix)
    }
