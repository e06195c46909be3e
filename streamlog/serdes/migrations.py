"""Migrations: types whose older forms can still be read, each by a function to the next one.

`@migration` on `def to_v2(old: TotalV1) -> TotalV2` says that wherever a TotalV2 is read (in state,
in a topic) what was written as a TotalV1 is read too, and turned into one; migrations follow on
each other. Rules of the file: what is written is the new type, so rows change as they are written;
bytes carry no version, so a type must have a field that the one before it did not have, and that is
required: by that the two are told apart, and without it the migration is refused. Only JSON.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Generic, TypeAlias, TypeVar, cast

from streamlog.errors import SerdeError, StreamlogError, TopologyError
from streamlog.serdes.erased_types import AnySerde, JsonValue, UserFunction, UserValue
from streamlog.serdes.serde import Serde, T, form_of, type_name

O = TypeVar("O")  # noqa: E741 - of what was before
"""The older type."""
N = TypeVar("N")
"""The newer type."""

Migration: TypeAlias = tuple[type, Callable[[UserValue], UserValue]]
"""The older class, and the function that makes a value of the newer one from one of it."""

_ATTRIBUTE = "__streamlog_migration__"
_USED = "__streamlog_used__"


def migration(fn: Callable[[O], N]) -> Callable[[O], N]:
    """Read what was written as the type that the function takes as the one that it returns.

    To be declared before topics, tables and operators that use the newer type.

    Raises:
        TopologyError: the function is not annotated with two classes, the newer one has a
            migration already, or it is in use already.
    """
    try:
        hints = typing.get_type_hints(fn)
        (parameter,) = inspect.signature(fn).parameters
    except (NameError, ValueError, TypeError) as error:
        raise TopologyError(f"the migration {_name(fn)} can't be understood: {error}") from error
    old, new = hints.get(parameter), hints.get("return")
    if not isinstance(old, type) or not isinstance(new, type) or old is new:
        raise TopologyError(
            f"the migration {_name(fn)} must be annotated with the class it takes and the class "
            "that it returns, as in `def to_v2(old: TotalV1) -> TotalV2`"
        )
    if _ATTRIBUTE in vars(new):
        raise TopologyError(f"{type_name(new)} has a migration already: let one follow the other")
    if _USED in vars(new):
        raise TopologyError(
            f"the migration to {type_name(new)} comes too late: declare it before the topics, "
            "tables and operators that use the type"
        )
    setattr(new, _ATTRIBUTE, (old, fn))
    return fn


def migration_to(
    declared: object,
) -> Migration | None:
    """The older type and its migration, if a type has one; from then on it can get none."""
    if not isinstance(declared, type):
        return None
    found = vars(declared).get(_ATTRIBUTE)
    if declared.__module__ != "builtins" and _USED not in vars(declared):
        try:
            setattr(declared, _USED, True)
        except (TypeError, AttributeError):
            return None  # A class of somebody's that can't be marked has no migrations either.
    before: Migration | None = found
    return before


class MigratingSerde(Generic[T]):
    """A type, and the types before it."""

    __slots__ = ("_migrate", "_new", "_old", "declared")

    def __init__(
        self, new: Serde[T], old: AnySerde, migrate: Callable[[UserValue], T], declared: object
    ) -> None:
        """`old` reads what was before, which `migrate` turns into the new type.

        Raises:
            TopologyError: nothing tells the bytes of one from those of the other.
        """
        self._new = new
        self._old = old
        self._migrate = migrate
        self.declared = declared
        if not any(_is_distinguishable(form_of(new), form) for form in readable_forms(old)[:1]):
            raise TopologyError(
                f"what was written before could be taken for a {type_name(declared)}: for its "
                f"migration {_name(migrate)} it needs a field without a default that the older "
                "type does not have, such as `version: Literal[2]`"
            )

    @property
    def form(self) -> object:
        """See `form_of`: the new type's, and those that are read as well."""
        return {
            **cast("Mapping[str, object]", form_of(self._new)),
            "migrates": readable_forms(self._old),
        }

    def dumps(self, obj: T) -> bytes:
        """As the new type."""
        return self._new.dumps(obj)

    def loads(self, data: bytes) -> T:
        """As the new type, or as an older one, by its migration."""
        try:
            return self._new.loads(data)
        except SerdeError:
            try:
                found = self._old.loads(data)
            except SerdeError:
                found = None
            if found is None:
                raise
        try:
            return self._migrate(found)
        except StreamlogError:
            raise
        except Exception as error:
            raise SerdeError(
                f"the migration {_name(self._migrate)} failed: {type(error).__name__}: {error}"
            ) from error


def readable_forms(serde: AnySerde) -> list[object]:
    """The forms that a serde reads: its own first, then those that it migrates from."""
    form = form_of(serde)
    if not isinstance(form, Mapping) or "migrates" not in form:
        return [form]
    own = {key: part for key, part in form.items() if key != "migrates"}
    return [own, *form["migrates"]]


def _is_distinguishable(new: object, old: object) -> bool:
    """Whether the new type requires a field that the old one never had."""
    required = set(_object(new).get("required", ()))
    return bool(required - set(_object(old).get("properties", ())))


def _object(form: object) -> Mapping[str, JsonValue]:
    """The schema of the outermost type."""
    schema = form.get("json") if isinstance(form, Mapping) else None
    if not isinstance(schema, Mapping):
        return {}
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    return cast("Mapping[str, JsonValue]", schema["$defs"][reference] if reference else schema)


def _name(fn: UserFunction) -> str:
    return repr(getattr(fn, "__name__", fn))
