"""Process: a node that is a class of the user's, with stores of its own.

What the class declares has been read and checked by the DSL; here it is data, so that a runner
needs to know nothing of the class but its methods. Rule of the file: names of stores hold a
slash, which no name of a node does, so they are nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlog.serdes import Serde
from streamlog.tables.store import StoreSpec
from streamlog.topology.nodes import Node


@dataclass(frozen=True, slots=True)
class ProcessorStore:
    """A store of a processor, under the name of the attribute that declares it."""

    attribute: str
    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]
    is_ordered: bool
    """The bytes of keys are in the order of the keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """Hands each record to an object of the user's, which hands on what it likes."""

    make: Callable[[], Any]
    """A new object; each task has its own."""
    stores: tuple[ProcessorStore, ...] = ()
