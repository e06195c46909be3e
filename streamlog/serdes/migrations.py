"""Migrations: types whose older versions can still be read, each by a function to the next one.

With `@migration` on `def to_v2(old: TotalV1) -> TotalV2`, every place that reads a TotalV2, in
state or in a topic, also reads a TotalV1 and converts it. Migrations form chains: a TotalV3 with a
migration from TotalV2 reads all three.

Rules: writing always uses the new type, so a row changes its form when it is next written. Bytes
carry no version, so a migration is refused unless the new type requires a field that the older one
lacks, which tells the two apart. Not done here: types that are not JSON.
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
"""The older class, and the function from its values to values of the newer class."""

_ATTRIBUTE = "__streamlog_migration__"
_USED = "__streamlog_used__"


def migration(fn: Callable[[O], N]) -> Callable[[O], N]:
    """Declare that data of the parameter's type can be read as the type that `fn` returns.

    Declare a migration before the topics, tables and operators that use the newer type.

    Args:
        fn: a function of one parameter, annotated with the older and the newer class.

    Returns:
        The function itself.

    Raises:
        TopologyError: the annotations are not two different classes, the newer class has a
            migration, or a serde of it was made before.
    """
    try:
        hints = typing.get_type_hints(fn)
        (parameter,) = inspect.signature(fn).parameters
    except (NameError, ValueError, TypeError) as error:
        raise TopologyError(
            f"the annotations of migration {_name(fn)} can't be read: {error}"
        ) from error
    old, new = hints.get(parameter), hints.get("return")
    if not isinstance(old, type) or not isinstance(new, type) or old is new:
        raise TopologyError(
            f"the migration {_name(fn)} must be annotated with the class it takes and the class "
            "that it returns, as in `def to_v2(old: TotalV1) -> TotalV2`"
        )
    if _ATTRIBUTE in vars(new):
        raise TopologyError(f"{type_name(new)} already has a migration: chain the two")
    if _USED in vars(new):
        raise TopologyError(
            f"the migration to {type_name(new)} is declared too late: declare it before the "
            "topics, tables and operators that use the type"
        )
    setattr(new, _ATTRIBUTE, (old, fn))
    return fn


def migration_to(
    declared: object,
) -> Migration | None:
    """Return the older class and the migration of a type; None if it has no migration.

    After this call, `migration` refuses the type: the existing serde would not use the migration.
    """
    if not isinstance(declared, type):
        return None
    found = vars(declared).get(_ATTRIBUTE)
    if declared.__module__ != "builtins" and _USED not in vars(declared):
        try:
            # 1. `serde_for(V2)` makes a serde without a migration, and caches it.
            # 2. A migration to V2 that is declared now would never be used: the mark makes
            #   `migration` raise an error instead.
            setattr(declared, _USED, True)
        except (TypeError, AttributeError):
            # A class without room for the mark has no room for a migration either.
            return None
    before: Migration | None = found
    return before


class MigratingSerde(Generic[T]):
    """A type that is also read from its older versions."""

    __slots__ = ("_migrate", "_new", "_old", "declared")

    def __init__(
        self, new: Serde[T], old: AnySerde, migrate: Callable[[UserValue], T], declared: object
    ) -> None:
        """`old` reads the older version, whose values `migrate` converts to the new type.

        Raises:
            TopologyError: the new type requires no field that the older version lacks.
        """
        self._new = new
        self._old = old
        self._migrate = migrate
        self.declared = declared
        if not any(_is_distinguishable(form_of(new), form) for form in readable_forms(old)[:1]):
            raise TopologyError(
                f"older data could be read as {type_name(declared)}: for its migration "
                f"{_name(migrate)}, give it a field without a default that the older type lacks, "
                "such as `version: Literal[2]`"
            )

    @property
    def form(self) -> object:
        """The form of the new type, with the forms of the older versions under `migrates`."""
        return {
            **cast("Mapping[str, object]", form_of(self._new)),
            "migrates": readable_forms(self._old),
        }

    def dumps(self, obj: T) -> bytes:
        """Serialize a value of the new type."""
        return self._new.dumps(obj)

    def loads(self, data: bytes) -> T:
        """Deserialize a value of the new type, or one of an older version, and migrate it.

        Data that no version can read raises the error of the new type.
        """
        # 1. Data of the new type: the first attempt succeeds, and costs no more than without
        #    migration.
        # 2. Older data lacks a field that the new type requires, so the first attempt fails.
        # 3. Damaged data fails both times: the error of the new type is the one to show.
        try:
            return self._new.loads(data)
        except SerdeError:
            try:
                found = self._old.loads(data)
            except SerdeError:
                found = None
            if found is None:
                raise  # The error of the new type, which is the one being handled here.
        try:
            return self._migrate(found)
        except StreamlogError:
            raise
        except Exception as error:
            raise SerdeError(
                f"the migration {_name(self._migrate)} failed: {type(error).__name__}: {error}"
            ) from error


def readable_forms(serde: AnySerde) -> list[object]:
    """Return the forms that a serde reads: its own, then the forms of its older versions."""
    form = form_of(serde)
    if not isinstance(form, Mapping) or "migrates" not in form:
        return [form]
    own = {key: part for key, part in form.items() if key != "migrates"}
    return [own, *form["migrates"]]


def _is_distinguishable(new: object, old: object) -> bool:
    """Return whether the new type requires a field that the old type lacks."""
    # Old data always lacks such a field, so the new type refuses it. A field with a default would
    # be filled in, and old data read as new.
    required = set(_object(new).get("required", ()))
    return bool(required - set(_object(old).get("properties", ())))


def _object(form: object) -> Mapping[str, JsonValue]:
    """Return the JSON Schema of the outermost type; an empty one if the form is not JSON."""
    schema = form.get("json") if isinstance(form, Mapping) else None
    if not isinstance(schema, Mapping):
        return {}
    reference = str(schema.get("$ref", "")).rpartition("/")[2]
    return cast("Mapping[str, JsonValue]", schema["$defs"][reference] if reference else schema)


def _name(fn: UserFunction) -> str:
    return repr(getattr(fn, "__name__", fn))
