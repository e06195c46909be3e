"""Which tables a function works on, read from its code.

`totals[key] += 1` in an agent needs the rows where the agent is, so the topology has to know before
anything runs. The names in the code are looked up as the function itself would: among the variables
around it, its module's, attributes of modules, and in the functions of the same module that it
calls. A table that is only asked (`await totals.fetch(key)`) is not worked on: it may be anywhere.
Rule of the file: code is read and never run; what can't be seen (a table handed over as an
argument) is said with tables=.
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

ASKED = frozenset({"fetch", "put", "scan", "name", "side", "changes"})
"""What is done with a table from anywhere."""
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_VARIABLES = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})


def tables_in_code(*functions: object) -> list[Table[UserKey, UserValue]]:
    """The tables whose rows these functions work on, in the order in which they are met."""
    found: dict[int, Table[UserKey, UserValue]] = {}
    seen: set[CodeType] = set()
    pending = [each for each in map(_plain, functions) if each is not None]
    while pending:
        function = pending.pop(0)
        if function.__code__ in seen:
            continue
        named = list(_references(function, seen))
        found |= {id(t): t for t, is_worked_on in named if isinstance(t, Table) and is_worked_on}
        called = (_plain(thing) for thing, _ in named)
        pending += [each for each in called if each and each.__module__ == function.__module__]
    return list(found.values())


def tables_of_class(kind: type) -> list[Table[UserKey, UserValue]]:
    """The same of all methods of a class, and those that are its attributes."""
    attributes = [each for base in kind.__mro__ for each in vars(base).values()]
    found = {id(each): each for each in attributes if isinstance(each, Table)}
    own = [each for each in attributes if isinstance(each, FunctionType)]
    return list((found | {id(each): each for each in tables_in_code(*own)}).values())


def local_tables(
    who: str,
    said: Sequence[Table[UserKey, UserValue]] | None,
    named: Iterable[Table[UserKey, UserValue]],
    builder: TopologyBuilder,
) -> tuple[str, ...]:
    """The tables whose rows somebody works on, by the nodes that keep them.

    Those that are `said`; else, of those that the code names, the ones that the program writes.

    Raises:
        TopologyError: a table has windows, or belongs to another app.
    """
    tables = [each for each in named if _is_writable(each, builder)] if said is None else said
    for table in tables:
        if table.side.place.builder is not builder:
            raise TopologyError(f"table {table.name!r}, which {who} works on, is of another app")
        if table.side.is_windowed:
            raise TopologyError(
                f"{who} can't have rows of {table.name!r} at hand, as it is windowed: ask for them "
                "with `await table.fetch(Windowed(...))` or `table.scan()`"
            )
    return tuple(dict.fromkeys(table.side.owner for table in tables))


def _is_writable(table: Table[UserKey, UserValue], builder: TopologyBuilder) -> bool:
    return table.side.place.builder is builder and isinstance(
        builder.nodes.get(table.side.owner), WritableTable
    )


def _plain(thing: object) -> FunctionType | None:
    """The function in it, below decorators that say what they wrap."""
    while (inner := getattr(thing, "__wrapped__", None)) is not None:
        thing = inner
    thing = getattr(thing, "__func__", thing)
    return thing if isinstance(thing, FunctionType) else None


def _references(function: FunctionType, seen: set[CodeType]) -> Iterator[tuple[object, bool]]:
    """What variables in the code stand for, and whether it is more than asked something."""
    around: dict[str, object] = {**function.__globals__, **_enclosing_variables(function)}
    pending = [function.__code__]
    while pending:
        code = pending.pop()
        seen.add(code)
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
    """What attributes of modules lead to, and whether it is more than asked something."""
    for attribute in attributes:
        if not isinstance(thing, ModuleType):
            return thing, attribute not in ASKED
        thing = getattr(thing, attribute, None)
    return thing, True


def _attributes(following: Iterable[dis.Instruction]) -> Iterator[str]:
    """The attributes that are taken of what has been loaded, one of the other."""
    for instruction in following:
        if instruction.opname == "CACHE":
            continue
        if instruction.opname not in _ATTRIBUTES:
            return
        yield str(instruction.argval)


def _enclosing_variables(function: FunctionType) -> dict[str, object]:
    """The variables of the functions around it."""
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # Not set yet.
    return found
