"""Models of pydantic as JSON, by pydantic: also inside of lists, unions, dataclasses and the like.

What a model says of itself holds: aliases, validators, how strictly it is read. Rule of the file:
pydantic is imported by whoever has made the model, never from here before that.
"""

from __future__ import annotations

import json
import typing
from importlib import import_module
from typing import Any, Generic, cast

from streamlog.errors import SerdeError
from streamlog.serdes.json_values import NULL, is_model, outer_classes
from streamlog.serdes.not_finite import refuse_not_finite
from streamlog.serdes.serde import T, type_name, unexpected, unreadable_json


def has_model(declared: object) -> bool:
    """Whether there is a model in a type, as far as its arguments show it."""
    return is_model(declared) or any(map(has_model, typing.get_args(declared)))


class ModelSerde(Generic[T]):
    """A type with models of pydantic in it, as JSON."""

    __slots__ = ("_adapter", "_expected", "_type_name", "declared")

    def __init__(self, declared: object) -> None:
        self.declared = declared
        self._type_name = type_name(declared)
        try:
            self._adapter: Any = import_module("pydantic").TypeAdapter(declared)
        except (TypeError, ValueError, NameError, AttributeError) as error:
            # Errors of pydantic are errors of the kind that they are, such as TypeError.
            raise SerdeError(f"{self._type_name} can't be read from JSON: {error}") from error
        self._expected = outer_classes(declared)

    @property
    def form(self) -> object:
        """See `form_of`; the schema of what is written."""
        return {"json": self._adapter.json_schema(mode="validation", by_alias=True)}

    def dumps(self, obj: T) -> bytes:
        """The value as JSON, fields by their aliases."""
        if not isinstance(obj, self._expected):
            raise unexpected(self._type_name, obj)
        try:
            data: bytes = self._adapter.dump_json(obj, by_alias=True, warnings="error")
            if NULL in data:
                self._refuse_not_finite(obj, data)
        except (TypeError, ValueError, RecursionError) as error:
            raise SerdeError(f"{self._type_name} can't be written as JSON: {error}") from error
        return data

    def loads(self, data: bytes) -> T:
        """The value in the JSON text, validated; the error names the field that is wrong."""
        try:
            return cast("T", self._adapter.validate_json(data))
        except (ValueError, RecursionError) as error:
            raise unreadable_json(self._type_name, data, str(error)) from error

    def _refuse_not_finite(self, obj: T, data: bytes) -> None:
        """Refuse NaN and infinities that pydantic has written as null.

        A model that says so writes them as text or constants (`ser_json_inf_nan`): those stay.
        """
        plain = self._adapter.dump_python(obj, by_alias=True, warnings="none")
        if _nones(json.loads(data)) > _nones(plain):
            refuse_not_finite(self._type_name, obj, plain)


def _nones(plain: object) -> int:
    """How many Nones there are in dicts, lists and the like."""
    if isinstance(plain, dict):
        return sum(map(_nones, plain.values()))
    if isinstance(plain, list | tuple | set | frozenset):
        return sum(map(_nones, plain))
    return plain is None
