"""Who commits for a group: what a transaction says beside the offsets (KIP-447).

By it the group's coordinator refuses offsets of a member that was replaced meanwhile, although the
producer that sends them is nobody's zombie. A value; it is taken anew for every transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NO_GENERATION: Final = -1
NO_MEMBER: Final = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMetadata:
    """A consumer as its group knows it; see `Consumer.group_metadata`."""

    group_id: str
    generation_id: int = NO_GENERATION
    """-1 for who assigns partitions itself: nobody can take them away, so nothing is checked."""
    member_id: str = NO_MEMBER
    instance_id: str | None = None
    """Of a static member."""
