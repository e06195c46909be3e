"""Rebased: the progress of a task of a snapshot, as it has to read in the log that it goes on in.

A history numbers the records of repartition topics by itself; the log of live workers has other
offsets there, and perhaps another id of the app in front of the topics' names. Rules of the file:
pure; what was taken from the log itself stays as it is. Of each source behind a repartition topic
what was heard stays, too, but nothing is taken to be at its end any more: who is waited for is told
by the first marks of the live tasks upstream. Records that wait between two stages (`pending`) are
in the topic, from its new position on, in their order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from streamlog.processing.provenance import BUSY_MS
from streamlog.processing.task_progress import ERA_SECTION as ERA
from streamlog.processing.task_progress import INPUTS_SECTION
from streamlog.tables.state.changelog import TaskProgress
from streamlog.windows.emit import StreamTime

REPARTITION: Final = "-repartition"
NO_POSITION: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Where a snapshot comes down."""

    app_id: str
    """Of the app that made it."""
    new_id: str
    """Of the app that goes on."""
    positions: Mapping[tuple[str, int], int]
    """Per repartition topic, by its new name, and partition: where reading goes on."""
    era: int
    """Of the app that goes on (see `processing/task_progress`)."""
    merges: bool = True
    """Whether the sources behind a repartition topic are merged by time: exactly once."""

    def name(self, topic: str) -> str:
        """What a topic is called where the app goes on."""
        if topic.startswith(f"{self.app_id}-") and topic.endswith(REPARTITION):
            return f"{self.new_id}-{topic.removeprefix(f'{self.app_id}-')}"
        return topic

    def rebased(
        self, progress: TaskProgress, partition: int, topics: Iterable[str] = ()
    ) -> TaskProgress:
        """The progress of a task there.

        Args:
            progress: as the history has left it.
            partition: the task's.
            topics: that it reads, by their new names: of one from which nothing came the progress
                says nothing, but what lies in there from earlier days is none of its business.
        """
        sections: dict[str, Any] = self._named(dict(progress.sections))
        inputs = dict(sections.get(INPUTS_SECTION, {}))
        offsets: dict[tuple[str, int], int] = {}
        known = {(self.name(topic), number): at for (topic, number), at in progress.offsets.items()}
        silent = {(topic, partition): 0 for topic in topics if topic.endswith(REPARTITION)}
        for here, before in {**silent, **known}.items():
            if here in silent.keys() - known.keys() - self.positions.keys():
                continue
            offsets[here] = self.positions.get(here, before)
            if here in self.positions and here[0] in inputs:
                moved = self.positions[here] - before
                inputs[here[0]] = self._input(inputs[here[0]], self.positions[here], moved)
        logs = {
            here: log
            for (topic, number), log in progress.logs.items()
            # Of a repartition topic it is another one here.
            if (here := (self.name(topic), number)) not in self.positions
        }
        sections = {**sections, INPUTS_SECTION: inputs, ERA: self.era}
        return TaskProgress(offsets=offsets, logs=logs, sections=sections)

    def _input(self, data: Mapping[str, Any], position: int, moved: int) -> dict[str, Any]:
        """What is known of the sources of a repartition topic's partition."""
        sources: list[list[Any]] = []
        for name, number, at, index, time_ms, _, *more in data["sources"]:
            if not self.merges:
                # Sources that are in the log themselves are told by their offsets there; others
                # had those of the history.
                place = [NO_POSITION, 0] if name.endswith(REPARTITION) else [at, index]
                sources.append([name, number, *place, time_ms, 0])
                continue
            # Without these two it was not merged before: the next owner begins without, too.
            after = [max(more[0] + moved, position), more[1]] if more else []
            sources.append([name, number, at, index, time_ms, BUSY_MS, *after])
        if self.merges:
            return {**data, "sources": sources}
        own = {"time_ms": data["time_ms"], "sources": sources, "stream": _stream(sources)}
        return {**own, "tags": data.get("tags", [])}

    def _named(self, data: Any) -> Any:  # noqa: ANN401 - JSON
        """The same data with the names of repartition topics as they are there."""
        match data:
            case str():
                return self.name(data)
            case dict():
                return {self.name(key): self._named(value) for key, value in data.items()}
            case list():
                return [self._named(each) for each in data]
            case _:
                return data


def renumbered(
    progress: TaskProgress, tails: Mapping[tuple[str, int], Sequence[int]]
) -> TaskProgress:
    """The progress of a live task as a history would have left it.

    In the log there are gaps between records, as at the ends of transactions; in a snapshot what
    waits is numbered without, from the position on.

    Args:
        progress: of the task.
        tails: per partition of a repartition topic, the offsets of the records that are there from
            the task's position on.
    """
    sections: dict[str, Any] = dict(progress.sections)
    inputs = dict(sections.get(INPUTS_SECTION, {}))
    for (topic, partition), offsets in tails.items():
        data = inputs.get(topic)
        if data is None or "sequence" not in data:
            continue
        position = progress.offsets.get((topic, partition), 0)
        sources = [
            [*row[:6], position + bisect_left(offsets, row[6]), *row[7:]] for row in data["sources"]
        ]
        inputs[topic] = {**data, "sources": sources}
    sections = {**sections, INPUTS_SECTION: inputs}
    return TaskProgress(offsets=progress.offsets, logs=progress.logs, sections=sections)


def _stream(sources: list[list[Any]]) -> dict[str, Any]:
    stream = StreamTime((name, number) for name, number, *_ in sources)
    for name, number, _, _, time_ms, *_ in sources:
        stream.advance((name, number), time_ms)
    return stream.to_data()
