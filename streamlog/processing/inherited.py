"""What a task finds in its state that another version of the program has left there.

An app's `Era` counts how often it has let go of state, with the user's consent. Every checkpoint
says in its progress in which era it was written. A task of a later era removes what was given up
since; one of an earlier era is a program that has been replaced, and refuses. Rule of the file:
within an era nothing is ever removed. Not done here: asking the user (`worker/versions`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.errors import CorruptData, TopologyError
from streamlog.tables.changelog import Progress
from streamlog.tables.store import KeyValueStore, StoreSpec, prefix_end
from streamlog.topology import Subtopology

SECTION = "era"
"""Of the progress."""
INPUTS = "inputs"
"""The section of what is known of the inputs; in others, names are those of nodes."""
REACHED = "reached"
"""The section of how far time has come by what has reached each node."""


@dataclass(frozen=True, slots=True)
class Era:
    """How often an app has let go of state, and which stores were given up in which era."""

    number: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What is to become of the state that a task has found."""

    lost: tuple[str, ...]
    """Stores whose rows are to be removed."""
    progress: Progress
    """What is left of it."""

    def clear(self, store: KeyValueStore) -> None:
        """Remove the rows that nobody can use any more."""
        for name in self.lost:
            prefix = StoreSpec(name).prefix
            store.delete_range(prefix, prefix_end(prefix))


def inherited(sub: Subtopology, progress: Progress, era: Era) -> Inheritance:
    """What to do with the state that was found.

    Raises:
        TopologyError: a newer program has taken over, or the state is another topology's.
        CorruptData: the progress is not readable.
    """
    found = progress.sections.get(SECTION, 0)
    if not isinstance(found, int):
        raise CorruptData(f"the progress of a task of {sub.app_id!r} has the era {found!r}")
    if found > era.number:
        raise TopologyError(
            f"a newer version of app {sub.app_id!r} has let go of state that this one works on: "
            "stop this worker, or start it again to see what has changed"
        )
    foreign = {topic for topic, _ in progress.offsets if topic not in sub.topics}
    if found == era.number:
        _refuse_foreign(foreign, sub)
        return Inheritance((), progress)
    lost = tuple(name for name, given_up in era.lost.items() if given_up > found)
    return Inheritance(lost, _kept(progress, foreign, {*lost}))


def _kept(progress: Progress, foreign: set[str], lost: set[str]) -> Progress:
    """Without the inputs that are not read any more, and without what belongs to lost stores."""
    sections: dict[str, object] = dict(progress.sections)
    for name, section in sections.items():
        gone = foreign if name == INPUTS else lost
        if isinstance(section, Mapping):
            sections[name] = {key: data for key, data in section.items() if key not in gone}
    offsets = {at: next_ for at, next_ in progress.offsets.items() if at[0] not in foreign}
    logs = {at: log for at, log in progress.logs.items() if at in offsets}
    return Progress(offsets=offsets, logs=logs, sections=sections)


def _refuse_foreign(foreign: set[str], sub: Subtopology) -> None:
    if foreign:
        raise TopologyError(
            f"the state of sub-topology {sub.number} of app {sub.app_id!r} was made by another "
            f"topology: it has read {', '.join(sorted(foreign))}, which the task does not read "
            "now. Streams were added or removed before this one; give the app a new id, or delete "
            "its changelog topics and its state directory to start afresh"
        )
