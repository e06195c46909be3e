"""Names for types of the user's program that the engine cannot know.

A user declares types per topic, table and function, and mypy checks them in the DSL: a
`Stream[str, Order]` refuses a function over other values. Below the DSL, one topology, one task and
one column of a batch hold keys and values of any number of such types, which are known only when
the program runs. There, a type checker has nothing to check, and each alias says what is erased.

Rule: an alias is for a value that user code made or will take. Anything else has its real type, or
`object` where code only passes it on. Not done here: types that are known, such as `Headers` in
`record`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from streamlog.record import Record
from streamlog.serdes.serde import Serde

UserKey: TypeAlias = Any
"""A key of a record, a row or a group, of the type that its serde was declared for.

A node and the node below it may have keys of different types, and a graph of nodes has no type
parameter for each of its edges.
"""

UserValue: TypeAlias = Any
"""A value of a record or a row, or a part of it, of a type that only user code knows.

Functions over values are declared in the DSL, where their types are checked, and are called in
`processing`, where values of all streams of a task are alike.
"""

UserState: TypeAlias = Any
"""The state of an aggregation between two records: what `init` and the fold of the user return.

The state's type differs per aggregation, and an aggregation of several columns has a list of such
states.
"""

AnyRecord: TypeAlias = Record[Any, Any]
"""A decoded record with an erased key and value, as a function of the user's takes it."""

UserFunction: TypeAlias = Callable[..., Any]
"""A function of the user's, whose parameters and result the DSL has checked or will inspect.

Use it where one place takes functions of different signatures; where the number of parameters is
fixed, write `Callable[[UserKey, UserValue], UserValue]` and the like.
"""

UserObject: TypeAlias = Any
"""An object of a class of the user's, such as a processor or a class of columns.

The code finds its methods and attributes by the names that the class declares, at run time.
"""

AnySerde: TypeAlias = Serde[Any]
"""A serde of a key or value whose type is erased.

`Serde` both takes and returns its type, so it is invariant, and `Serde[object]` would refuse the
serde of every declared type.
"""

JsonValue: TypeAlias = Any
"""Decoded JSON or MessagePack: None, a bool, a number, text, bytes, a list or a mapping of them.

Code that reads it knows the layout from the code that wrote it, in another run and perhaps in an
older release; a type of the union would have to be narrowed at every step without being checked.
"""

TypeForm: TypeAlias = Any
"""A type as an annotation writes it: a class, `list[int]`, `int | None`, a `NewType`.

Python 3.11 has no type for all of them (PEP 747 proposes one), and they are built at run time from
what the user has declared.
"""

ANY_TYPE: Final[TypeForm] = Any
"""The type form for a value of an unknown type, as annotations and decoders write it."""
