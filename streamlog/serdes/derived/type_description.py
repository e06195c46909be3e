"""Type description: a declared Python type as plain data, from which schemas are derived.

`describe_type` reads dataclasses, `msgspec.Struct`, `TypedDict`, pydantic models, and everything
that their fields may contain. The modules of the formats turn the description into a schema, and
into functions between values and what a library of the format takes.

Rule: a description depends on the declaration alone. It has the order of the declared fields, the
names that the type writes (`rename`, `alias`), and defaults that are equal in each run; the result
of a `default_factory` counts only if the factory is a container or a described class. What no
format has an equivalent for is refused here, with the type and the field.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Final, Literal, NewType, TypeAlias, TypeVar, Union, is_typeddict
from uuid import UUID

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes.erased_types import JsonValue, TypeForm, UserObject, UserValue
from streamlog.serdes.json_values import is_model
from streamlog.serdes.serde import type_name

PRIMITIVES: Final = (bool, int, float, str, bytes, date, datetime, time, timedelta, UUID)
MISSING: Final = object()
"""The default of a field that has none."""
NESTING_MAX: Final = 100
"""The deepest nesting of a declared type; no registry takes a deeper schema."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_ARRAYS: Final[Mapping[object, type]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    tuple: tuple,
    Sequence: list,
    AbstractSet: frozenset,
}
"""What an array is read into, by its declared type."""
_CONTAINERS = (list, dict, set, frozenset, tuple)
_CONSTRAINTS: Final = (
    "gt",
    "ge",
    "lt",
    "le",
    "multiple_of",
    "pattern",
    "min_length",
    "max_length",
)
"""Limits of msgspec.Meta and of annotated_types, which JSON Schema can state."""


class Digits(msgspec.Struct, frozen=True):
    """The digits of a Decimal, in `Annotated[Decimal, Digits(12, 2)]`.

    Attributes:
        precision: the number of digits, 1 or more.
        scale: how many of them follow the decimal point, 0 to `precision`.
    """

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if self.precision < 1 or not 0 <= self.scale <= self.precision:
            raise SerdeError(
                f"Digits({self.precision}, {self.scale}): the precision must be 1 or more, and the "
                "scale between 0 and the precision"
            )


class FieldNumber(msgspec.Struct, frozen=True):
    """The number of a field in Protobuf, in `Annotated[int, FieldNumber(7)]`."""

    number: int


class PrimitiveType(msgspec.Struct, frozen=True):
    """One of `PRIMITIVES`."""

    python: type
    constraints: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)
    has_zone: bool = True
    """Of a datetime: whether it is a moment (UTC); False: a wall clock's time, by
    `msgspec.Meta(tz=False)`."""


class NullType(msgspec.Struct, frozen=True):
    """None."""


class DecimalType(msgspec.Struct, frozen=True):
    """A Decimal; without digits only in formats that write it as text."""

    digits: Digits | None
    path: str
    """Where it is declared, for messages."""


class EnumType(msgspec.Struct, frozen=True):
    """An Enum; `members` are in the order of their declaration."""

    name: str
    python: type[Enum]
    members: tuple[Enum, ...]


class LiteralType(msgspec.Struct, frozen=True):
    """A Literal of texts, whole numbers or booleans, all of one class."""

    python: type
    values: tuple[UserValue, ...]


class ArrayType(msgspec.Struct, frozen=True):
    """A list, set, frozenset, or a tuple of any length."""

    python: type
    item: DescribedType
    constraints: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)


class MapType(msgspec.Struct, frozen=True):
    """A dict."""

    key: DescribedType
    value: DescribedType
    constraints: Mapping[str, JsonValue] = msgspec.field(default_factory=dict)


class UnionType(msgspec.Struct, frozen=True):
    """`X | Y`, with at least two members."""

    members: tuple[DescribedType, ...]

    @property
    def others(self) -> tuple[DescribedType, ...]:
        """The members without None."""
        return tuple(each for each in self.members if not isinstance(each, NullType))

    @property
    def is_nullable(self) -> bool:
        """Whether None is a member."""
        return len(self.others) < len(self.members)


class RecordField(msgspec.Struct, frozen=True, eq=False):
    """A field of a record."""

    name: str
    """The attribute or key in Python."""
    wire_name: str
    """The name in the schema."""
    type: DescribedType
    path: str
    """`Type.field`, for messages."""
    default: object = MISSING
    has_factory: bool = False
    """Whether the class makes a default, known here or not."""
    may_be_absent: bool = False
    """Whether it is a key of a TypedDict that may be missing."""
    number: int | None = None
    """The number that the declaration gives it in Protobuf."""


class RecordType(msgspec.Struct, eq=False):
    """A dataclass, Struct, TypedDict or model; a recursive type contains itself."""

    name: str
    """The full name in the schema: `__schema_name__`, or the name of the class."""
    python: UserObject
    kind: Literal["dataclass", "struct", "typeddict", "model"]
    fields: tuple[RecordField, ...] = ()
    tag: tuple[str, str | int] | None = None
    """The field and its value by which msgspec tells Structs of a union apart."""
    is_array: bool = False
    """Whether msgspec writes it to JSON as an array (`array_like`)."""

    @property
    def short_name(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(".")[2]

    @property
    def namespace(self) -> str:
        """The name's namespace, or an empty text."""
        return self.name.rpartition(".")[0]


DescribedType: TypeAlias = (
    PrimitiveType
    | NullType
    | DecimalType
    | EnumType
    | LiteralType
    | ArrayType
    | MapType
    | UnionType
    | RecordType
)


def describe_type(declared: TypeForm) -> DescribedType:
    """Return the description of a declared type.

    Raises:
        SerdeError: the type, or one of its fields, has no equivalent in any schema; the message
            names both.
    """
    return _Describer().describe(declared, type_name(declared), 0)


def types_of(described: DescribedType) -> Iterator[DescribedType]:
    """Yield a type and all types inside it, each record once, in the order of declaration."""
    seen: set[int] = set()
    pending = [described]
    while pending:
        found = pending.pop()
        if isinstance(found, RecordType):
            if id(found) in seen:
                continue
            seen.add(id(found))
        yield found
        pending.extend(reversed(_inner(found)))


def is_optional(declared: DescribedType) -> bool:
    """Return whether a type takes None."""
    return isinstance(declared, UnionType) and declared.is_nullable


def without_null(union: UnionType) -> DescribedType:
    """Return a union without None; the member itself if only one is left."""
    others = union.others
    return others[0] if len(others) == 1 else UnionType(others)


def _inner(described: DescribedType) -> list[DescribedType]:
    match described:
        case RecordType():
            return [each.type for each in described.fields]
        case UnionType():
            return [*described.members]
        case ArrayType():
            return [described.item]
        case MapType():
            return [described.key, described.value]
        case _:
            return []


class _Describer:
    """Describes one declared type, with each class inside it once."""

    def __init__(self) -> None:
        self._records: dict[object, RecordType] = {}
        self._named: dict[str, object] = {}

    def describe(self, declared: TypeForm, path: str, depth: int) -> DescribedType:
        if depth > NESTING_MAX:
            raise SerdeError(f"{path}: the type is nested deeper than {NESTING_MAX} levels")
        declared, notes = _unwrap(declared)
        if declared is None or declared is type(None):
            return NullType()
        if declared is Decimal:
            return DecimalType(_digits(notes), path)
        if declared in PRIMITIVES:
            has_zone = not any(getattr(note, "tz", None) is False for note in notes)
            return PrimitiveType(declared, _constraints(notes), has_zone)
        return self._composed(declared, notes, path, depth)

    def _composed(
        self, declared: TypeForm, notes: Sequence[object], path: str, depth: int
    ) -> DescribedType:
        origin: TypeForm = typing.get_origin(declared)
        if origin in (Union, types.UnionType):
            found = self._union(declared, path, depth)
        elif origin is Literal:
            found = _literal(declared, path)
        elif isinstance(declared, type) and issubclass(declared, Enum):
            found = self._enum(declared, path)
        elif is_record(origin or declared):
            found = self._record(declared, path, depth)
        else:
            found = self._container(declared, notes, path, depth)
        return found

    def _container(
        self, declared: TypeForm, notes: Sequence[object], path: str, depth: int
    ) -> DescribedType:
        origin: TypeForm = typing.get_origin(declared) or declared
        arguments = typing.get_args(declared)
        inside = depth + 1
        if isinstance(origin, type) and arguments:
            if origin is tuple and arguments[1:] != (...,):
                raise SerdeError(
                    f"{path}: {type_name(declared)} has a type for each position, which schemas "
                    "do not have: use a dataclass with a field for each"
                )
            if origin in _ARRAYS:
                kind = _ARRAYS[origin]
                item = self.describe(arguments[0], f"{path}[]", inside)
                return ArrayType(kind, item, _constraints(notes))
            if origin in (dict, Mapping):
                key = self.describe(arguments[0], f"{path}'s keys", inside)
                value = self.describe(arguments[1], f"{path}[...]", inside)
                return MapType(key, value, _constraints(notes))
        if declared in _CONTAINERS:
            raise SerdeError(
                f"{path}: {type_name(declared)} does not say what it contains: write "
                f"{'dict[str, int]' if declared is dict else 'list[int]'} or the like"
            )
        raise SerdeError(
            f"{path}: {type_name(declared)} has no equivalent in a schema: use a dataclass, "
            "Struct, TypedDict or model, or one of bool, int, float, str, bytes, Decimal, date, "
            "datetime, time, timedelta, UUID, Enum, list, dict and unions of them"
        )

    def _enum(self, declared: type[Enum], path: str) -> EnumType:
        if issubclass(declared, Flag) or not len(declared):
            raise SerdeError(
                f"{path}: {type_name(declared)} is a Flag or has no members; use an Enum "
                "with members, or int"
            )
        return EnumType(self._name(declared, declared, path), declared, tuple(declared))

    def _union(self, declared: TypeForm, path: str, depth: int) -> DescribedType:
        members: list[DescribedType] = []
        for argument in typing.get_args(declared):
            found = self.describe(argument, path, depth + 1)
            # A NewType of a union, for instance, is a union inside a union.
            members += found.members if isinstance(found, UnionType) else [found]
        return UnionType(tuple(members)) if len(members) > 1 else members[0]

    def _record(self, declared: TypeForm, path: str, depth: int) -> RecordType:
        known = self._records.get(declared)
        if known is not None:
            return known
        cls: TypeForm = typing.get_origin(declared) or declared
        own = type_name(cls) if depth == 0 else path
        # The record is known before its fields are described: a recursive type finds it there.
        record = RecordType(self._name(declared, cls, own), cls, _kind(cls))
        self._records[declared] = record
        try:
            hints = _hints(declared, cls)
        except NameError as error:
            raise SerdeError(
                f"{type_name(cls)}: {error}; the types of its fields must be imported at the top "
                "of the module that defines it, outside `if TYPE_CHECKING`"
            ) from error
        if record.kind == "struct":
            config = cls.__struct_config__
            record.is_array = config.array_like
            if config.tag is not None:
                record.tag = (config.tag_field, config.tag)
        fields = []
        for found in _FIELDS[record.kind](cls, hints):
            where = f"{type_name(cls)}.{found.name}"
            fields.append(self._field(found, where, depth))
        record.fields = tuple(fields)
        return record

    def _field(self, found: _Declared, path: str, depth: int) -> RecordField:
        kind = self.describe(found.hint, path, depth + 1)
        if found.may_be_absent and is_optional(kind):
            raise SerdeError(
                f"{path}: schemas can't tell a missing key from None: use either NotRequired or "
                "`| None`"
            )
        default = found.default
        if found.factory is not None:
            default = _made(found.factory)
        numbers = [note.number for note in _unwrap(found.hint)[1] if isinstance(note, FieldNumber)]
        return RecordField(
            name=found.name,
            wire_name=found.wire_name,
            type=kind,
            path=path,
            default=default,
            has_factory=found.factory is not None,
            may_be_absent=found.may_be_absent,
            number=numbers[0] if numbers else None,
        )

    def _name(self, declared: TypeForm, cls: type, path: str) -> str:
        given = vars(cls).get("__schema_name__")
        name = cls.__name__ if given is None else given
        arguments = typing.get_args(declared)
        if arguments:
            parts = (re.sub(r"\W+", "_", type_name(each)).strip("_") for each in arguments)
            name = "_".join([name, *parts])
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise SerdeError(
                f"{path}: {name!r} can't be a name in a schema: give the class the attribute "
                "__schema_name__, of the characters a-z, A-Z, 0-9, '_', and '.' between the parts "
                "of a namespace"
            )
        other = self._named.setdefault(name, declared)
        if other != declared:
            raise SerdeError(
                f"{path}: two types have the name {name!r}, {_location(other)} and "
                f"{_location(declared)}: give one of them the attribute __schema_name__"
            )
        return name


class _Declared(msgspec.Struct, frozen=True):
    """A field as its class declares it."""

    name: str
    wire_name: str
    hint: TypeForm
    default: object = MISSING
    factory: Callable[[], object] | None = None
    may_be_absent: bool = False


def is_record(declared: object) -> bool:
    """Return whether a type is a class with fields that schemas can describe."""
    return isinstance(declared, type) and (
        dataclasses.is_dataclass(declared)
        or is_typeddict(declared)
        or is_model(declared)
        or issubclass(declared, msgspec.Struct)
    )


def _kind(cls: type) -> Literal["dataclass", "struct", "typeddict", "model"]:
    if is_typeddict(cls):
        return "typeddict"
    # A dataclass of pydantic has a validator, but is written and read like any dataclass.
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    return "struct" if issubclass(cls, msgspec.Struct) else "model"


def _dataclass_fields(cls: UserObject, hints: Mapping[str, TypeForm]) -> Iterator[_Declared]:
    for found in dataclasses.fields(cls):
        if not found.init:
            raise SerdeError(
                f"{type_name(cls)}.{found.name}: a field with init=False can't be read back"
            )
        default = MISSING if found.default is dataclasses.MISSING else found.default
        factory = None if found.default_factory is dataclasses.MISSING else found.default_factory
        yield _Declared(found.name, found.name, hints[found.name], default, factory)


def _struct_fields(cls: UserObject, hints: Mapping[str, TypeForm]) -> Iterator[_Declared]:
    for found in msgspec.structs.fields(cls):
        default = MISSING if found.default is msgspec.NODEFAULT else found.default
        factory = None if found.default_factory is msgspec.NODEFAULT else found.default_factory
        yield _Declared(
            found.name,
            found.encode_name,
            hints[found.name],
            default,
            typing.cast("Callable[[], object] | None", factory),
        )


def _typeddict_fields(cls: UserObject, hints: Mapping[str, TypeForm]) -> Iterator[_Declared]:
    for name, hint in hints.items():
        # A class whose annotations are texts knows only `total` (bpo-44539): what stands at the
        # field counts first.
        marker: TypeForm = typing.get_origin(hint)
        is_required = name in cls.__required_keys__ or marker is typing.Required
        may_be_absent = marker is typing.NotRequired or not is_required
        yield _Declared(name, name, hint, may_be_absent=may_be_absent)


def _model_fields(cls: UserObject, hints: Mapping[str, TypeForm]) -> Iterator[_Declared]:
    for name, found in cls.model_fields.items():
        path = f"{type_name(cls)}.{name}"
        written = found.serialization_alias or found.alias or name
        if (found.validation_alias or written) != written:
            raise SerdeError(
                f"{path} is written as {written!r} and read as {found.validation_alias!r}: a "
                "schema has one name for both"
            )
        # Pydantic takes limits out of the annotation, and adds those of Field().
        hint = Annotated[(found.annotation, *found.metadata)] if found.metadata else hints[name]
        has_default = not found.is_required() and found.default_factory is None
        yield _Declared(
            name, written, hint, found.default if has_default else MISSING, found.default_factory
        )


_FIELDS: Final[
    Mapping[str, Callable[[UserObject, Mapping[str, TypeForm]], Iterator[_Declared]]]
] = {
    "dataclass": _dataclass_fields,
    "struct": _struct_fields,
    "typeddict": _typeddict_fields,
    "model": _model_fields,
}


def _hints(declared: TypeForm, cls: type) -> dict[str, TypeForm]:
    """Return the types of a class's fields, with the arguments of a generic class put in."""
    hints = typing.get_type_hints(cls, include_extras=True)
    arguments = dict(
        zip(getattr(cls, "__parameters__", ()), typing.get_args(declared), strict=False)
    )
    return {name: _with_arguments(hint, arguments) for name, hint in hints.items()}


def _with_arguments(hint: TypeForm, arguments: Mapping[object, TypeForm]) -> TypeForm:
    if isinstance(hint, TypeVar):
        return arguments.get(hint, hint)
    inside = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) or not inside:
        return hint
    return hint[tuple(arguments.get(each, each) for each in inside)]


_WRAPPERS = tuple(
    getattr(typing, name)
    for name in ("Required", "NotRequired", "Final", "ReadOnly")
    if hasattr(typing, name)
)


def _unwrap(declared: TypeForm) -> tuple[TypeForm, list[object]]:
    """Return the type behind aliases and annotations, and the notes of the annotations."""
    notes: list[object] = []
    while True:
        origin: TypeForm = typing.get_origin(declared)
        # 1. Annotated[NewType(...), note]: the note, then the type behind the name.
        # 2. NotRequired[Annotated[...]]: the marker goes, and the notes stay.
        if isinstance(declared, NewType):
            declared = declared.__supertype__
        elif origin is Annotated:
            first, *more = typing.get_args(declared)
            declared, notes = first, [*notes, *more]
        elif origin in _WRAPPERS:
            (declared,) = typing.get_args(declared)
        elif type(declared).__name__ == "TypeAliasType":
            # `type X = ...` of Python 3.12.
            declared = declared.__value__
        else:
            return declared, notes


def _constraints(notes: Sequence[object]) -> dict[str, JsonValue]:
    found = {}
    for note in notes:
        for name in _CONSTRAINTS:
            value = getattr(note, name, None)
            if isinstance(value, int | float | str):
                found[name] = value
    return found


def _digits(notes: Sequence[object]) -> Digits | None:
    precision, scale = None, None
    for note in notes:
        if isinstance(note, Digits):
            return note
        # Pydantic's Field(max_digits=12, decimal_places=2).
        precision = getattr(note, "max_digits", precision)
        scale = getattr(note, "decimal_places", scale)
    return None if precision is None else Digits(precision, scale or 0)


def _literal(declared: TypeForm, path: str) -> LiteralType:
    values = typing.get_args(declared)
    classes = {type(value) for value in values}
    if len(classes) != 1 or not classes <= {str, int, bool}:
        raise SerdeError(
            f"{path}: the values of {type_name(declared)} must all be texts, all be whole numbers, "
            "or all be booleans"
        )
    return LiteralType(classes.pop(), values)


def _made(factory: Callable[[], object]) -> object:
    """Return what a factory makes, if that is certain to be equal in each run."""
    # 1. `list`: an empty list in each run. 2. `uuid4` or `datetime.now`: another value in each, so
    # the schema states none, and readers of older data need the field to be optional. 3. A lambda
    # might be either, and counts as 2.
    if factory in _CONTAINERS:
        return factory()
    if not is_record(factory):
        return MISSING
    # A class whose fields all have constant defaults: its own factories count like this one.
    cls = typing.cast("type", factory)
    for found in _FIELDS[_kind(cls)](cls, _hints(cls, cls)):
        if found.factory is not None and _made(found.factory) is MISSING:
            return MISSING
    return factory()


def _location(declared: object) -> str:
    cls = typing.get_origin(declared) or declared
    return f"{getattr(cls, '__module__', '?')}.{getattr(cls, '__qualname__', declared)}"
