"""Finds the tables, and other objects, that a function uses directly, from its bytecode.

`totals[key] += 1` in an agent needs the row in the agent's worker, so the topology has to know the
table before anything runs. Names in the code are looked up as the function itself would look them
up: in the functions around it, in its module, and as attributes of modules. Functions of the same
module that it calls are read too. Code that only calls methods that work in any worker, such as
`await totals.fetch(key)`, does not use the table directly.

Rule: code is read and never run. Tables that the code does not show, such as arguments, are
declared with `tables=`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType

from streamlog.dsl.table import Table
from streamlog.errors import TopologyError
from streamlog.nodes.table_nodes import WritableTable
from streamlog.serdes.erased_types import UserKey, UserValue
from streamlog.topology import TopologyBuilder

REMOTE_METHODS = frozenset({"fetch", "put", "scan", "name", "side", "changes"})
"""Attributes of a table that need no row in this worker."""
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_VARIABLES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})


def tables_in_code(*functions: object) -> list[Table[UserKey, UserValue]]:
    """Return the tables that these functions use directly, in the order of the code."""
    used = used_in_code(functions)
    return list({id(each): each for each in used if isinstance(each, Table)}.values())


def used_in_code(functions: Iterable[object]) -> Iterator[object]:
    """Yield the objects that these functions use directly, in the order of the code."""
    seen: set[CodeType] = set()
    pending = [each for each in map(_plain, functions) if each is not None]
    while pending:
        # First in, first out: this keeps the objects in the order of the code.
        function = pending.pop(0)
        # Functions may call each other, so each code is read once.
        if function.__code__ in seen:
            continue
        named = list(_references(function, seen))
        yield from (thing for thing, is_direct in named if is_direct)
        called = (_plain(thing) for thing, _ in named)
        pending += [each for each in called if each and each.__module__ == function.__module__]


def tables_of_class(kind: type) -> list[Table[UserKey, UserValue]]:
    """Return the tables that methods of a class use directly, and those that are its attributes."""
    attributes = [each for base in kind.__mro__ for each in vars(base).values()]
    found = {id(each): each for each in attributes if isinstance(each, Table)}
    own = [each for each in attributes if isinstance(each, FunctionType)]
    return list((found | {id(each): each for each in tables_in_code(*own)}).values())


def local_tables(
    who: str,
    declared: Sequence[Table[UserKey, UserValue]] | None,
    named: Iterable[Table[UserKey, UserValue]],
    builder: TopologyBuilder,
) -> tuple[str, ...]:
    """Return the nodes of the tables that an agent or a processor uses directly.

    Args:
        who: the agent or processor, for messages.
        declared: the tables of `tables=`; None derives them from the code.
        named: the tables in its code; only writable ones count.
        builder: the topology of its app.

    Raises:
        TopologyError: a table has windows, or belongs to another app.
    """
    tables = declared
    if tables is None:
        tables = [each for each in named if _is_writable(each, builder)]
    for table in tables:
        if table.side.position.builder is not builder:
            raise TopologyError(f"table {table.name!r}, which {who} uses, belongs to another app")
        if table.side.is_windowed:
            raise TopologyError(
                f"{who} can't use table {table.name!r} directly, because it is windowed: read its "
                "rows with `await table.fetch(Windowed(...))` or `table.scan()`"
            )
    return tuple(dict.fromkeys(table.side.owner for table in tables))


def _is_writable(table: Table[UserKey, UserValue], builder: TopologyBuilder) -> bool:
    return table.side.position.builder is builder and isinstance(
        builder.nodes.get(table.side.owner), WritableTable
    )


def _plain(thing: object) -> FunctionType | None:
    """Return the function inside decorators with `__wrapped__` and methods; None if none is."""
    while (inner := getattr(thing, "__wrapped__", None)) is not None:
        thing = inner
    thing = getattr(thing, "__func__", thing)
    return thing if isinstance(thing, FunctionType) else None


def _references(function: FunctionType, seen: set[CodeType]) -> Iterator[tuple[object, bool]]:
    """Yield the objects that the code names, and whether it uses each directly."""
    around: dict[str, object] = {**function.__globals__, **_enclosing_variables(function)}
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        seen.add(code)
        # Functions and comprehensions inside the code are among its constants.
        pending += [each for each in code.co_consts if isinstance(each, CodeType)]
        yield from _look_up(list(dis.get_instructions(code)), around)


def _look_up(
    instructions: list[dis.Instruction], around: Mapping[str, object]
) -> Iterator[tuple[object, bool]]:
    for at, instruction in enumerate(instructions):
        if instruction.opname in _VARIABLES and instruction.argval in around:
            yield _follow_attributes(
                around[instruction.argval], _attributes(instructions[at + 1 :])
            )


def _follow_attributes(thing: object, attributes: Iterator[str]) -> tuple[object, bool]:
    """Follow attributes of modules; return the object found, and whether its use is direct."""
    for attribute in attributes:
        if not isinstance(thing, ModuleType):
            # `totals.fetch` needs no row here. `totals.get`, or any other attribute, does.
            return thing, attribute not in REMOTE_METHODS
        thing = getattr(thing, attribute, None)
    return thing, True


def _attributes(following: Iterable[dis.Instruction]) -> Iterator[str]:
    """Yield the attributes that are read from a loaded object, each from the one before."""
    for instruction in following:
        if instruction.opname == "CACHE":  # Space for the interpreter after an instruction.
            continue
        if instruction.opname not in _ATTRIBUTES:
            return
        yield str(instruction.argval)


def _enclosing_variables(function: FunctionType) -> dict[str, object]:
    """Return the variables of the enclosing functions."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # The variable is not set yet.
    return found
