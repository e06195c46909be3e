"""Errors of `JsonSerde` and its siblings for JSON with a byte order mark."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

import pydantic
import pytest

from streamlog.errors import SerdeError
from streamlog.serdes import from_json, serde_for


@dataclass
class Sale:
    shop: str


class Model(pydantic.BaseModel):
    shop: str


TEXT = '{"shop": "ulm"}'


@pytest.mark.parametrize("declared", [Sale, Model, dict, Any])
@pytest.mark.parametrize(
    ("data", "encoding"),
    [
        (codecs.BOM_UTF8 + TEXT.encode(), "UTF-8"),
        (TEXT.encode("utf-16"), "UTF-16"),
        (codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), "UTF-16"),
    ],
)
def test_a_byte_order_mark_is_named(declared: Any, data: bytes, encoding: str) -> None:
    message = rf"begins with a byte order mark \({encoding}\), which JSON must not have"
    with pytest.raises(SerdeError, match=message):
        serde_for(declared).loads(data)


def test_a_byte_order_mark_in_front_of_a_plain_value_is_named() -> None:
    with pytest.raises(SerdeError, match="byte order mark"):
        from_json(serde_for(int), codecs.BOM_UTF8 + b"7")


def test_malformed_json_without_the_mark_is_reported_as_malformed() -> None:
    with pytest.raises(SerdeError, match="malformed"):
        serde_for(Sale).loads(b"{shop")
