"""Every declared message, and strategies for its values, derived from its declaration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st

import streamlog.protocol.messages
from streamlog.protocol.schema import Field, Message, Struct, StructType

MODULES = [
    importlib.import_module(f"streamlog.protocol.messages.{module.name}")
    for module in pkgutil.iter_modules(streamlog.protocol.messages.__path__)
]
MESSAGES = [
    member
    for module in MODULES
    for member in vars(module).values()
    if isinstance(member, StructType) and issubclass(member, Message) and member is not Message
]
VERSIONED = [
    (message_type, version)
    for message_type in MESSAGES
    for version in range(message_type.__versions__.first, message_type.__versions__.last + 1)
]
every_message = pytest.mark.parametrize("message_type", MESSAGES, ids=lambda it: it.__name__)
every_version = pytest.mark.parametrize(
    ("message_type", "version"),
    VERSIONED,
    ids=[f"{message_type.__name__}-{version}" for message_type, version in VERSIONED],
)

# There are about 400 versions of messages, so few examples of each are many in total.
EXAMPLES = settings().max_examples
few = settings(max_examples=EXAMPLES // 8 if EXAMPLES > 100 else 3)
many = settings(max_examples=EXAMPLES * 8)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    # Above 127 bytes, a compact length takes 2 bytes.
    "string": st.one_of(TEXTS, st.just("x" * 130)),
    "bytes": st.one_of(st.binary(max_size=8), st.just(b"x" * 130)),
    "records": st.binary(max_size=8),
}


def messages(declared: type[Struct] | StructType, version: int) -> st.SearchStrategy[Any]:
    """Return a strategy for messages that set only the fields of a version."""
    construct: Callable[..., Struct] = declared
    present = [field for field in declared.__fields__ if version in field.versions]
    return st.builds(construct, **{field.name: values(field, version) for field in present})


def values(field: Field, version: int) -> st.SearchStrategy[Any]:
    match field.kind, field.item:
        case "array", str(kind):
            strategy: st.SearchStrategy[Any] = st.lists(SCALARS[kind], max_size=3)
        case "array", StructType() as item:
            strategy = st.lists(messages(item, version), max_size=2)
        case "struct", StructType() as item:
            strategy = messages(item, version)
            return (
                strategy
                if field.tag is None and version not in field.nullable
                else (st.none() | strategy)
            )
        case kind, _:
            strategy = SCALARS[kind]
    return st.none() | strategy if version in field.nullable else strategy
