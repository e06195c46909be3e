"""Types of keys and values along a stream, as far as they are known while it is built.

A topic declares its types. An operator changes them, and the new type is known only if its function
is annotated, which a lambda can't be. Types matter where records are serialized: in a repartition
topic and in a store. A field that a known type lacks is refused while the topology is built, with
the nearest name that the type has. The source of a lambda is read for error messages only.

Rule: an unknown type is never guessed; its values are written as MessagePack (`serdes.msgpack`).
Not done here: type checking (mypy).
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial, reduce
from operator import attrgetter, itemgetter
from typing import Annotated, Generic, TypeVar, Union, cast, is_typeddict

import msgspec

from streamlog.errors import SerdeError, TopologyError
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.record import Windowed
from streamlog.serdes import (
    PACKED,
    WindowedSerde,
    declared_by,
    msgpack,
    msgpack_serde_of,
    schema_of,
    serde_for,
    type_name,
)
from streamlog.serdes.erased_types import (
    ANY_TYPE,
    AnySerde,
    TypeForm,
    UserFunction,
    UserObject,
    UserValue,
)
from streamlog.serdes.json_values import is_model
from streamlog.windows.definitions import Windows
from streamlog.windows.window_assigner import layout_of

_BARE = (str, bytes, int, float, bool)
"""Types without fields."""


def field_type(declared: object, path: str, what: str) -> object:
    """Return the type of a field, by its name or by a path `a.b`; None if it is not known.

    Args:
        declared: the type of the values.
        path: the name or path.
        what: the reader of the field, for messages.

    Raises:
        TopologyError: the type has no such field.
    """
    for name in path.split("."):
        declared = _step(bare(declared), name, what)
    return declared


def getter(declared: object, path: str) -> Callable[[UserValue], UserValue] | str:
    """Return the name of a field that is an attribute, else a function that reads the field."""
    steps: list[Callable[[UserValue], UserValue] | str] = []
    for name in path.split("."):
        kind = bare(declared)
        steps.append(_reader(kind, name))
        declared = _step(kind, name, path)
    # A single attribute stays a name: a compiled fold reads it without calling a function.
    if all(isinstance(step, str) for step in steps):
        return path if len(steps) == 1 else attrgetter(path)
    readers = [attrgetter(step) if isinstance(step, str) else step for step in steps]
    if len(readers) == 1:
        return readers[0]
    return lambda value: reduce(lambda part, read: read(part), readers, value)


def bare(declared: object) -> object:
    """Return a type without None, Annotated and NewType; None if it is not known."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated:
        return bare(typing.get_args(declared)[0])
    if typing.get_origin(declared) in (typing.Required, typing.NotRequired):
        return bare(typing.get_args(declared)[0])
    if is_union(declared):
        members = [each for each in typing.get_args(declared) if each is not type(None)]
        return bare(members[0]) if len(members) == 1 else Union[tuple(members)]  # noqa: UP007 - built from values
    return None if declared is ANY_TYPE or declared is object else declared


def tuple_form(parts: Iterable[TypeForm]) -> TypeForm:
    """Return the type of tuples whose items have these types, in this order."""
    return cast("TypeForm", tuple)[tuple(parts)]


def list_form(part: TypeForm) -> TypeForm:
    """Return the type of lists of this type."""
    return cast("TypeForm", list)[part]


def is_union(declared: object) -> bool:
    """Return whether a type is a union."""
    return typing.get_origin(declared) in (Union, types.UnionType)


def may_be_none(declared: object) -> bool:
    """Return whether None is a value of a type."""
    while isinstance(declared, typing.NewType):
        declared = declared.__supertype__
    if typing.get_origin(declared) is Annotated:
        return may_be_none(typing.get_args(declared)[0])
    if is_union(declared):
        return any(map(may_be_none, typing.get_args(declared)))
    if typing.get_origin(declared) is typing.Literal:
        return None in typing.get_args(declared)
    return declared is type(None) or declared is None


def is_never_none(declared: object) -> bool:
    """Return whether a type is known, and None is not one of its values."""
    kind = bare(declared)
    is_known = isinstance(kind, type) or typing.get_origin(kind) is not None
    return is_known and not may_be_none(declared)


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """Return a question for the end of a message, if one of the names is similar; else ""."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _step(kind: object, name: str, what: str) -> object:
    """Return the type of a field of a bare type; None if it is not known."""
    if kind is None or isinstance(kind, typing.TypeVar):
        return None
    if is_union(kind):
        # Any member of the union may be the value, so its field is known only if they all agree.
        found = [_step(bare(each), name, what) for each in typing.get_args(kind)]
        return found[0] if all(each == found[0] for each in found) else None
    origin = typing.get_origin(kind) or kind
    if _is_mapping(origin) and not is_typeddict(origin):
        parts = typing.get_args(kind)
        return parts[1] if len(parts) == 2 else None  # noqa: PLR2004 - dict[K, V]
    hints = _hints(origin)
    if name in hints:
        return _fill_variables(hints[name], kind)
    # A property has no annotation in the class. `len` stands for a missing attribute, and is
    # callable like a method: neither of them is a field.
    if not is_typeddict(origin) and not callable(getattr(origin, name, len)):
        return _hints(getattr(origin, name)).get("return")
    if not hints and origin not in _BARE:
        return None  # A class without annotations may have any attributes.
    raise TopologyError(
        f"{type_name(kind)} has no field {name!r}, which {what} reads{nearest(name, hints)}"
    )


def _hints(described: object) -> Mapping[str, object]:
    """Return the annotations of a class, or of the function of a property or method."""
    described = getattr(described, "fget", described)
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return dict.fromkeys(getattr(described, "__annotations__", ()))


def _fill_variables(hint: object, kind: object) -> object:
    """Return a field's type with the arguments of its generic class for its type variables."""
    names = getattr(typing.get_origin(kind), "__parameters__", ())
    parts = typing.get_args(kind)
    # In `Page(Generic[T])` with fields `first: T` and `all: list[T]`, `first` of a `Page[int]` is
    # an int; `all` counts as unknown.
    if isinstance(hint, typing.TypeVar) and hint in names and len(parts) == len(names):
        return parts[names.index(hint)]
    return None if _has_variables(hint) else hint


def _has_variables(hint: object) -> bool:
    return isinstance(hint, typing.TypeVar) or any(map(_has_variables, typing.get_args(hint)))


def _is_mapping(origin: object) -> bool:
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _reader(kind: object, name: str) -> Callable[[UserValue], UserValue] | str:
    origin = typing.get_origin(kind) or kind
    if is_typeddict(origin) or _is_mapping(origin):
        return itemgetter(name)
    if isinstance(origin, type):
        return name
    return partial(_either, name)


def _either(name: str, value: UserValue) -> UserValue:
    return value[name] if isinstance(value, dict) else getattr(value, name)


@dataclass(frozen=True, slots=True)
class Maker:
    """A function whose return type is not declared, and the values that it returns."""

    location: str
    """The name, file and line of the function, for messages."""
    result: str = ""
    """The class that it certainly returns, if storing its values needs a declared type; else ""."""
    advice: str = ""
    """How to declare the type, for messages."""

    def refusal(self) -> str:
        """Return why its values can't be stored."""
        return (
            f"{self.location} returns {self.result}, which a later operator stores: {self.advice}"
        )


def source_location(fn: UserFunction) -> str:
    """Return the name of a function with the file and line of its definition, for messages."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    name = getattr(fn, "__name__", type(fn).__name__)
    shown = "the lambda" if name == "<lambda>" else f"the function {name!r}"
    if code is None:
        return shown
    file = code.co_filename.replace("\\", "/").rpartition("/")[2]
    return f"{shown} at {file}:{code.co_firstlineno}"


def maker_of(
    fn: UserFunction,
    given: Sequence[object],
    pick: Callable[[object], object] | None,
    unresolved: str = "",
) -> Maker:
    """Return the facts about a function without a return type, for messages.

    Args:
        fn: the function.
        given: the types of its parameters; None for one that is not known.
        pick: returns the relevant part of the type of its result.
        unresolved: why its annotation can't be read; "" if it has none.
    """
    location = source_location(fn)
    if unresolved:
        advice = f"{unresolved}; import it at the top of the module, outside `if TYPE_CHECKING`"
        return Maker(location, "values whose type its annotation does not give", advice)
    returned = _lambda_result(fn, given)
    if pick is not None and returned is not None:
        returned = pick(returned)
    found = _undeclared_class(returned)
    if found is None:
        return Maker(location)
    name = type_name(found)
    return Maker(
        location,
        f"values of type {name}"
        if found is returned
        else f"values of type {name} inside {type_name(returned)}",
        "use a function that is annotated with what it returns, as in `def made(...) -> "
        f"{name if found is returned else '...'}` (a lambda can't be annotated)",
    )


def _undeclared_class(kind: object) -> type[UserObject] | None:
    """Return a class in a type whose values can't be stored without a declared type, or None."""
    if isinstance(kind, type) and not typing.get_args(kind):
        # `_fields`: a NamedTuple, which would be read back as a plain tuple.
        is_record = dataclasses.is_dataclass(kind) or is_model(kind) or hasattr(kind, "_fields")
        return kind if is_record or issubclass(kind, msgspec.Struct | Enum) else None
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        return origin
    if origin in (typing.Union, types.UnionType):
        return None  # The value may be of the other type.
    parts = (_undeclared_class(part) for part in typing.get_args(kind))
    return next((part for part in parts if part is not None), None)


def _lambda_result(fn: UserFunction, given: Sequence[object]) -> TypeForm:
    """Return the type of a lambda's result, from its source; None if it is not known."""
    if not isinstance(fn, types.LambdaType) or fn.__name__ != "<lambda>":
        return None
    node = _node_of(fn)
    if node is None:
        return None
    names: dict[str, object] = {}
    for parameter, kind in zip(node.args.args, given, strict=False):
        names[parameter.arg] = kind
    return _Expression(fn, names).type_of(node.body)


def _node_of(fn: types.LambdaType) -> ast.Lambda | None:
    """Return the syntax tree of a lambda, found by the position of its body in the source."""
    code = fn.__code__
    try:
        # The lines of the whole file: a lambda has no name, and several may begin on one line.
        lines, _ = inspect.findsource(code)
    except (OSError, TypeError):
        return None
    spans = [each for each in code.co_positions() if None not in each and each[2] != each[3]]
    # The widest span of an instruction is the whole body: it begins first and ends last.
    body = max(spans, key=lambda each: (each[1], each[3], -each[0], -each[2]), default=None)  # type: ignore[operator]
    for node in _lambdas(tuple(lines)):
        span = node.body
        own = (span.lineno, span.end_lineno, span.col_offset, span.end_col_offset)
        if own == body:
            return node
    return None


@lru_cache(maxsize=32)
def _lambdas(lines: tuple[str, ...]) -> tuple[ast.Lambda, ...]:
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Lambda))


class _Expression:
    """Infers the types of expressions in a lambda; an unknown type is None."""

    def __init__(self, fn: types.LambdaType, names: Mapping[str, object]) -> None:
        self._names = names
        closed = inspect.getclosurevars(fn)
        self._around: dict[str, object] = {**closed.builtins, **closed.globals, **closed.nonlocals}

    def type_of(self, node: ast.expr) -> TypeForm:
        """Return the type of an expression."""
        found: TypeForm = None
        match node:
            case ast.Name(id=name):
                found = self._names.get(name)
            case ast.Constant(value=value):
                found = None if value is None else type(value)
            case ast.Attribute(value=of, attr=name):
                found = self._field(self.type_of(of), name)
            case ast.Tuple(elts=parts) if not any(isinstance(p, ast.Starred) for p in parts):
                found = cast("TypeForm", tuple)[
                    tuple(self.type_of(part) or object for part in parts)
                ]
            case ast.List(elts=[part]):
                found = list_form(self.type_of(part) or object)
            case ast.Subscript(value=of, slice=ast.Constant(value=int(at))):
                # `tuple[int, ...]` has any number of items, so an index says nothing.
                kinds = typing.get_args(self.type_of(of))
                found = kinds[at] if 0 <= at < len(kinds) and Ellipsis not in kinds else None
            case ast.Call(func=ast.Name(id=name)) if name not in self._names:
                found = self._called(self._around.get(name))
        return found

    def _field(self, of: object, name: str) -> object:
        try:
            return None if of is None else field_type(of, name, "a lambda")
        except TopologyError:
            return None

    def _called(self, found: object) -> object:
        if isinstance(found, type):
            return found
        if not isinstance(found, types.FunctionType):
            return None
        try:
            return typing.get_type_hints(found).get("return")
        except (NameError, TypeError, AttributeError):
            return None


T = TypeVar("T")
"""The type of a state."""

_encode = msgspec.msgpack.Encoder().encode


class TypedPackedSerde(Generic[T]):
    """Values of a declared type as MessagePack: states of aggregations.

    `pack` is `dumps` for whole columns; its errors do not name the type.
    """

    pack = staticmethod(_encode)

    def __init__(self, declared: object) -> None:
        self._declared = declared
        self._name = type_name(declared)
        self._decode = msgpack.decoder(declared)

    @property
    def form(self) -> object:
        """The JSON Schema of the type (`serdes.form_of`)."""
        return {"msgpack": schema_of(self._declared)}

    def dumps(self, obj: T) -> bytes:
        """Serialize a value."""
        try:
            return _encode(obj)
        except OverflowError:
            pass  # The value contains a whole number beyond 64 bits.
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error
        try:
            return msgpack.dump_wide(obj)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error

    def loads(self, data: bytes) -> T:
        """Deserialize a value."""
        try:
            return cast("T", self._decode(data))
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not {self._name}: {error}; the data is {data[:48]!r}") from error

    def _unwritable(self, error: Exception) -> SerdeError:
        return SerdeError(f"{self._name} can't be written as MessagePack: {error}")


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of keys or values, as far as it is known, and their serde."""

    declared: object = None
    """The declared type; None if it is not known."""
    given: AnySerde | None = None
    """The serde of the topic that the keys or values come from, if no operator changed them."""
    # Not compared: a type that a function does not declare equals UNKNOWN.
    maker: Maker | None = field(default=None, compare=False)
    """The function that returns the values, if their type is not known."""

    @property
    def serde(self) -> AnySerde:
        """The serde of the keys or values.

        Raises:
            SerdeError: values of the type can't be serialized.
            TopologyError: the type is not declared, and certainly needs to be.
        """
        if self.maker is not None and self.maker.result:
            raise TopologyError(self.maker.refusal())
        return self.serde_if_needed

    @property
    def serde_if_needed(self) -> AnySerde:
        """The serde, without an error for an undeclared type, for values that may not be stored."""
        if self.given is not None:
            return self.given
        if self.declared is not None:
            return serde_for(self.declared)
        return PACKED if self.maker is None else msgpack_serde_of(self.maker.location)

    @property
    def is_known(self) -> bool:
        """Whether a type or a serde is known."""
        return self.declared is not None or self.given is not None

    @property
    def known(self) -> object:
        """The type, from the topic's serde if that has it; None if it is not known."""
        return self.declared if self.given is None else type_of(self.given)

    def windowed(self, windows: Windows) -> Shape:
        """Return the shape of windowed keys around keys of this shape."""
        return Shape(given=WindowedSerde(self.serde, layout_of(windows)))


UNKNOWN = Shape()


def type_of(serde: AnySerde) -> object:
    """Return the type that a serde was made for; None if that is not known."""
    if not isinstance(serde, WindowedSerde):
        return declared_by(serde)
    # That keys have windows is known even if the type of the key inside is not.
    inner = type_of(serde.key_serde)
    return Windowed if inner is None else types.GenericAlias(Windowed, (inner,))


def return_shape(
    fn: UserFunction,
    *given: Shape,
    of: Callable[[object], object] | None = None,
) -> Shape:
    """Return the shape of a function's result, from its annotation; a class returns its instances.

    Args:
        fn: the function.
        given: the shapes of its parameters, to infer the result of a lambda for messages.
        of: picks a part of the annotation, such as the second item of a tuple.
    """
    try:
        declared = fn if isinstance(fn, type) else _hint(fn)
    except NameError as error:
        return Shape(maker=maker_of(fn, (), None, str(error)))
    if of is not None and declared is not None:
        declared = of(declared)
    shape = declared_shape(declared)
    if shape.is_known:
        return shape
    return Shape(maker=maker_of(fn, [each.known for each in given], of))


def declared_shape(declared: object) -> Shape:
    """Return the shape of a type as the user wrote it; Any and type variables are unknown."""
    if declared is None or declared is ANY_TYPE or _is_open(declared):
        return UNKNOWN
    return Shape(declared)


def element(index: int) -> Callable[[object], object]:
    """Return a function that picks a type out of `tuple[K, V]`."""

    def pick(declared: object) -> object:
        parts = typing.get_args(declared)
        pair = typing.get_origin(declared) is tuple and len(parts) > index
        return parts[index] if pair else None

    return pick


def item(declared: object) -> object:
    """Return T of `Iterable[T]`, `list[T]` and the like; None if there is not one argument."""
    parts = typing.get_args(declared)
    return parts[0] if len(parts) == 1 else None


def item_element(index: int) -> Callable[[object], object]:
    """Return a function that picks a type out of `Iterable[tuple[K, V]]`."""
    pick = element(index)
    return lambda declared: pick(item(declared))


def _hint(fn: UserFunction) -> object:
    """Return the annotated type of a function's result; None if it has none.

    Raises:
        NameError: the annotation names a type that is imported for type checkers only.
    """
    try:
        hint: object = typing.get_type_hints(fn).get("return")
    except NameError:
        # The annotation of a parameter may be the reason, so read that of the result alone.
        hint = _return_hint(fn)
    except (TypeError, AttributeError):
        return None
    return None if hint is type(None) else hint


def _return_hint(fn: UserFunction) -> object:
    annotation = getattr(fn, "__annotations__", {}).get("return")
    if annotation is None:
        return None

    # `get_type_hints` reads all annotations of a function and fails on any of them, so this one is
    # moved to a function that has no other.
    def alone() -> None: ...

    alone.__annotations__ = {"return": annotation}
    around = getattr(inspect.unwrap(fn), "__globals__", {})
    return typing.get_type_hints(alone, globalns=around).get("return")


def _is_open(declared: object) -> bool:
    """Return whether a type contains type variables."""
    return isinstance(declared, TypeVar) or any(map(_is_open, typing.get_args(declared)))


def topic_key(name: str, declared: object, windows: Windows | None) -> AnySerde:
    """Return the serde of a topic's keys.

    Args:
        name: the name of the topic, for messages.
        declared: the type of the keys.
        windows: the windows of windowed keys, whose layout follows from them.

    Raises:
        SerdeError: keys of the type can't be serialized.
        TopologyError: there are windows, but the keys are not windowed.
    """
    try:
        serde = serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the key of topic {name!r}: {error}") from error
    if isinstance(serde, WindowedSerde):
        return WindowedSerde(serde.key_serde, None if windows is None else layout_of(windows))
    if windows is not None:
        raise TopologyError(f"topic {name!r} has windows, but no key=Windowed[...] for them")
    return serde


def share_layout(key: Shape, topic: TopicSpec) -> None:
    """Give a topic the layout of the windowed keys that are written to it.

    Raises:
        TopologyError: the topic has another layout already.
    """
    # 1. A windowed table writes to a topic of this app: its layout becomes the topic's.
    # 2. Another operator reads the topic, and finds the end of each window by that layout.
    # 3. A table with other windows writes to the topic too: the bytes do not say which windows they
    #    are of, so the second layout is refused.
    here, there = key.given, topic.key
    if not isinstance(here, WindowedSerde) or not isinstance(there, WindowedSerde):
        return
    if there.layout is None:
        there.layout = here.layout
    elif here.layout is not None and there.layout.form and there.layout != here.layout:
        raise TopologyError(
            f"topic {topic.name!r} already has keys of other windows, and Kafka's windowed keys "
            "don't say which windows they belong to: write these to another topic"
        )


def common_key_shape(keys: Shape, *others: Shape) -> Shape:
    """Return the shape of the keys of merged streams.

    If their windows differ in layout, the layout of the result has both start and end.
    """
    serde = keys.given
    # In Kafka's layout of time windows a key has the start alone. With windows of two sizes, equal
    # bytes would be different windows.
    layouts = [getattr(each.given, "layout", None) for each in (keys, *others)]
    if not isinstance(serde, WindowedSerde) or all(each == layouts[0] for each in layouts):
        return keys
    return Shape(given=WindowedSerde(serde.key_serde))
