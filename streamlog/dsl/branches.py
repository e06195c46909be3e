"""Branches: the streams of a split, by their names."""

from __future__ import annotations

from typing import Any, TypeVar

from streamlog.dsl.fields import nearest
from streamlog.errors import TopologyError

S = TypeVar("S")
"""A stream."""


class Branches(dict[str, S]):
    """Streams by name."""

    def __missing__(self, name: str) -> Any:  # noqa: ANN401 - never returns
        """No such branch.

        Raises:
            TopologyError: always, with those that there are.
        """
        raise TopologyError(
            f"there is no branch {name!r}, only {', '.join(self)}{nearest(name, self)}"
        )
