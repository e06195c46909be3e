"""`copy.replace` of Python 3.13, for frozen values on the Pythons before it.

Most frozen values are `msgspec.Struct`s: such a class is made in 30 us where a dataclass takes
1 ms, which counts for a command that imports five hundred of them, and an instance in 0.2 us
instead of 1.6 us. mypy checks names and types of the changes for Structs and dataclasses alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import replace
else:
    import dataclasses

    import msgspec

    def replace(value: object, /, **changes: object) -> object:
        """A copy of `value` with other values for the fields that `changes` names.

        Raises `TypeError` for a field that the class does not have.
        """
        if isinstance(value, msgspec.Struct):
            return msgspec.structs.replace(value, **changes)
        return dataclasses.replace(value, **changes)


__all__ = ["replace"]
