"""What is known of the types of keys and values on their way through a stream.

A topic declares its types. An operator changes them, and the new type is known only if the function
is annotated; a lambda tells nothing. Types matter where records are serialized: in a repartition
topic and in a store. A field that a known type lacks is refused while the topology is built, with
the nearest name that it has. The source of a lambda is read for error messages only.

Rule: a type that is not known is never guessed; its values are written as MessagePack
(`serdes.msgpack`). Not done here: type checking (mypy).
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
    """The type of a field, by its name or by names with dots between them; None: not known.

    Raises:
        TopologyError: there is no such field.
    """
    for name in path.split("."):
        declared = _step(bare(declared), name, what)
    return declared


def getter(declared: object, path: str) -> Callable[[UserValue], UserValue] | str:
    """What reads a field: the name alone if it is an attribute, else a function."""
    steps: list[Callable[[UserValue], UserValue] | str] = []
    for name in path.split("."):
        kind = bare(declared)
        steps.append(_reader(kind, name))
        declared = _step(kind, name, path)
    if all(isinstance(step, str) for step in steps):
        return path if len(steps) == 1 else attrgetter(path)
    readers = [attrgetter(step) if isinstance(step, str) else step for step in steps]
    if len(readers) == 1:
        return readers[0]
    return lambda value: reduce(lambda part, read: read(part), readers, value)


def bare(declared: object) -> object:
    """A type without None, notes and names of its own; None if it is not known."""
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
    """Whether it is one of several types."""
    return typing.get_origin(declared) in (Union, types.UnionType)


def may_be_none(declared: object) -> bool:
    """Whether None is one of the values of a type."""
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
    """Whether a type is known not to have None among its values."""
    kind = bare(declared)
    is_known = isinstance(kind, type) or typing.get_origin(kind) is not None
    return is_known and not may_be_none(declared)


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """A question for the end of a message, if one of the names is like it."""
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _step(kind: object, name: str, what: str) -> object:
    """The type of one field of a bare type."""
    if kind is None or isinstance(kind, typing.TypeVar):
        return None
    if is_union(kind):
        found = [_step(bare(each), name, what) for each in typing.get_args(kind)]
        return found[0] if all(each == found[0] for each in found) else None
    origin = typing.get_origin(kind) or kind
    if _is_mapping(origin) and not is_typeddict(origin):
        parts = typing.get_args(kind)
        return parts[1] if len(parts) == 2 else None  # noqa: PLR2004 - dict[K, V]
    hints = _hints(origin)
    if name in hints:
        return _fill_variables(hints[name], kind)
    if not is_typeddict(origin) and not callable(getattr(origin, name, len)):
        return _hints(getattr(origin, name)).get("return")
    if not hints and origin not in _BARE:
        return None  # A class that says nothing of what its instances have.
    raise TopologyError(
        f"{type_name(kind)} has no field {name!r}, which {what} reads{nearest(name, hints)}"
    )


def _hints(described: object) -> Mapping[str, object]:
    """The annotations of a class, or of what a property or method is made of."""
    described = getattr(described, "fget", described)
    try:
        return typing.get_type_hints(described)
    except (NameError, TypeError, AttributeError):
        return dict.fromkeys(getattr(described, "__annotations__", ()))


def _fill_variables(hint: object, kind: object) -> object:
    """A field's type with the arguments of a generic class in place of its variables."""
    names = getattr(typing.get_origin(kind), "__parameters__", ())
    parts = typing.get_args(kind)
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
    """A function that returns values of a type that is not declared."""

    told: str
    """Which function it is, and where."""
    gives: str = ""
    """What it is certain to return that can't be stored without a declared type; "": nothing."""
    advice: str = ""

    def refusal(self) -> str:
        """Why its values can't be stored."""
        return f"{self.told} returns {self.gives}, which has to be stored behind it: {self.advice}"


def source_location(fn: UserFunction) -> str:
    """A function, and the file and line where it is defined."""
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
    """What is known of a function whose return type is not.

    Args:
        fn: the function.
        given: the types of its parameters, None where they are not known.
        pick: takes the part that matters out of what it returns.
        unresolved: why its annotation says nothing.
    """
    told = source_location(fn)
    if unresolved:
        advice = f"{unresolved}; import it at the top of the module, outside `if TYPE_CHECKING`"
        return Maker(told, "what its annotation does not tell", advice)
    returned = _lambda_result(fn, given)
    if pick is not None and returned is not None:
        returned = pick(returned)
    found = _undeclared_class(returned)
    if found is None:
        return Maker(told)
    name = type_name(found)
    return Maker(
        told,
        f"a {name}" if found is returned else f"a {name} inside of {type_name(returned)}",
        "use a function that is annotated with what it returns, as in `def made(...) -> "
        f"{name if found is returned else '...'}` (a lambda can't be annotated)",
    )


def _undeclared_class(kind: object) -> type[UserObject] | None:
    """A class in a type whose instances can't be stored without a declared type."""
    if isinstance(kind, type) and not typing.get_args(kind):
        is_record = dataclasses.is_dataclass(kind) or is_model(kind) or hasattr(kind, "_fields")
        return kind if is_record or issubclass(kind, msgspec.Struct | Enum) else None
    origin = typing.get_origin(kind)
    if isinstance(origin, type) and dataclasses.is_dataclass(origin):
        return origin
    if origin in (typing.Union, types.UnionType):
        return None  # It may be the other one.
    parts = (_undeclared_class(part) for part in typing.get_args(kind))
    return next((part for part in parts if part is not None), None)


def _lambda_result(fn: UserFunction, given: Sequence[object]) -> TypeForm:
    """The type of what a lambda returns, as far as its source says it; None if not."""
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
    """The lambda in the source, by the place of its body."""
    code = fn.__code__
    try:
        lines, _ = inspect.findsource(code)
    except (OSError, TypeError):
        return None
    spans = [each for each in code.co_positions() if None not in each and each[2] != each[3]]
    body = max(spans, key=lambda each: (each[1], each[3], -each[0], -each[2]), default=None)  # type: ignore[operator]
    for node in _lambdas(tuple(lines)):
        place = node.body
        own = (place.lineno, place.end_lineno, place.col_offset, place.end_col_offset)
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
    """The types of the expressions in a lambda; None is one that is not known."""

    def __init__(self, fn: types.LambdaType, names: Mapping[str, object]) -> None:
        self._names = names
        closed = inspect.getclosurevars(fn)
        self._around: dict[str, object] = {**closed.builtins, **closed.globals, **closed.nonlocals}

    def type_of(self, node: ast.expr) -> TypeForm:
        """The type of an expression."""
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
"""What is serialized."""

_encode = msgspec.msgpack.Encoder().encode


class TypedPackedSerde(Generic[T]):
    """Values of a declared type as MessagePack: states of aggregations.

    `pack` is `dumps` for whole columns, and tells less when it fails.
    """

    pack = staticmethod(_encode)

    def __init__(self, declared: object) -> None:
        self._declared = declared
        self._name = type_name(declared)
        self._decode = msgpack.decoder(declared)

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"msgpack": schema_of(self._declared)}

    def dumps(self, obj: T) -> bytes:
        """The value as MessagePack."""
        try:
            return _encode(obj)
        except OverflowError:
            pass  # A whole number beyond 64 bits.
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error
        try:
            return msgpack.dump_wide(obj)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise self._unwritable(error) from error

    def loads(self, data: bytes) -> T:
        """The value."""
        try:
            return cast("T", self._decode(data))
        except (msgspec.MsgspecError, ValueError) as error:
            raise SerdeError(f"not {self._name}: {error}; the data is {data[:48]!r}") from error

    def _unwritable(self, error: Exception) -> SerdeError:
        return SerdeError(f"{self._name} can't be written as MessagePack: {error}")


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of keys or of values, as far as it is known, and the serde that belongs to it."""

    declared: object = None
    """None: not known."""
    given: AnySerde | None = None
    """The serde of the topic that it came from."""
    maker: Maker | None = field(default=None, compare=False)
    """The function that values of an unknown type come from."""

    @property
    def serde(self) -> AnySerde:
        """How to write it down.

        Raises:
            SerdeError: the type can't be.
            TopologyError: the type is not declared, and is certain to be one that has to be.
        """
        if self.maker is not None and self.maker.gives:
            raise TopologyError(self.maker.refusal())
        return self.serde_if_needed

    @property
    def serde_if_needed(self) -> AnySerde:
        """The same, where values may never be written down."""
        if self.given is not None:
            return self.given
        if self.declared is not None:
            return serde_for(self.declared)
        return PACKED if self.maker is None else msgpack_serde_of(self.maker.told)

    @property
    def is_known(self) -> bool:
        """Whether anything is known of the type."""
        return self.declared is not None or self.given is not None

    @property
    def known(self) -> object:
        """The type, also where only the topic's serde knows it; None if nobody does."""
        return declared_by(self.given) if self.given is not None else self.declared

    def windowed(self, windows: Windows) -> Shape:
        """Of `Windowed` keys with such a key inside."""
        return Shape(given=WindowedSerde(self.serde, layout_of(windows)))


UNKNOWN = Shape()


def return_shape(
    fn: UserFunction,
    *given: Shape,
    of: Callable[[object], object] | None = None,
) -> Shape:
    """The shape of what a function returns, by its annotation; a class returns its instances.

    Args:
        fn: the function.
        given: the shapes of its parameters, for what is certain of one that is not annotated.
        of: picks a part of the annotation, such as the second of a tuple.
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
    """The shape of a type as it was written down; of Any and type variables nothing is known."""
    if declared is None or declared is ANY_TYPE or _is_open(declared):
        return UNKNOWN
    return Shape(declared)


def element(index: int) -> Callable[[object], object]:
    """Picks a type out of tuple[K, V]."""

    def pick(declared: object) -> object:
        parts = typing.get_args(declared)
        pair = typing.get_origin(declared) is tuple and len(parts) > index
        return parts[index] if pair else None

    return pick


def item(declared: object) -> object:
    """Picks T out of Iterable[T], list[T] and the like."""
    parts = typing.get_args(declared)
    return parts[0] if len(parts) == 1 else None


def item_element(index: int) -> Callable[[object], object]:
    """Picks a type out of Iterable[tuple[K, V]]."""
    pick = element(index)
    return lambda declared: pick(item(declared))


def _hint(fn: UserFunction) -> object:
    """What a function is annotated to return.

    Raises:
        NameError: the annotation names what only a type checker sees.
    """
    try:
        hint: object = typing.get_type_hints(fn).get("return")
    except NameError:
        hint = _return_hint(fn)  # One of the parameters may be the reason.
    except (TypeError, AttributeError):
        return None
    return None if hint is type(None) else hint


def _return_hint(fn: UserFunction) -> object:
    said = getattr(fn, "__annotations__", {}).get("return")
    if said is None:
        return None

    def alone() -> None: ...

    alone.__annotations__ = {"return": said}
    around = getattr(inspect.unwrap(fn), "__globals__", {})
    return typing.get_type_hints(alone, globalns=around).get("return")


def _is_open(declared: object) -> bool:
    """Whether type variables are left in it."""
    return isinstance(declared, TypeVar) or any(map(_is_open, typing.get_args(declared)))


def topic_key(name: str, declared: object, windows: Windows | None) -> AnySerde:
    """The serde of a topic's keys.

    Raises:
        SerdeError: the type can't be written down.
        TopologyError: there are windows, and the keys are not windowed.
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
    """Let the topic have the layout of the keys that are written to it.

    Raises:
        TopologyError: it has another one.
    """
    here, there = key.given, topic.key
    if not isinstance(here, WindowedSerde) or not isinstance(there, WindowedSerde):
        return
    if there.layout is None:
        there.layout = here.layout
    elif here.layout is not None and there.layout.form and there.layout != here.layout:
        raise TopologyError(
            f"topic {topic.name!r} has keys of other windows already, and Kafka's windowed keys "
            "don't say of which they are: write these to a topic of their own"
        )


def common_key_shape(keys: Shape, *others: Shape) -> Shape:
    """Of the keys of several streams that become one; of windows of several kinds, both borders."""
    serde = keys.given
    layouts = [getattr(each.given, "layout", None) for each in (keys, *others)]
    if not isinstance(serde, WindowedSerde) or all(each == layouts[0] for each in layouts):
        return keys
    return Shape(given=WindowedSerde(serde.key_serde))
