"""What a task keeps of its progress when one of its inputs is another log by now.

The state stays as it is, event time included. Only the place in the input is a new one. Behind a
repartition topic, what a source was heard with stays, too: its records are told by their place in
the source, which goes on. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from streamlog.processing.inherited import INPUTS
from streamlog.tables.changelog import Progress, SourceLog

_RESUME: Final = 6
"""Where a row of a merged source has the offset before which all was heard (`merged`)."""


class Restart(NamedTuple):
    """Where an input goes on."""

    offset: int
    log: SourceLog


def restarted(progress: Progress, restarts: Mapping[tuple[str, int], Restart]) -> Progress:
    """The progress of a task whose inputs go on in other logs."""
    sections: dict[str, Any] = dict(progress.sections)
    inputs = dict(sections.get(INPUTS, {}))
    for (topic, _), restart in restarts.items():
        data = inputs.get(topic)
        if data is not None and "sequence" in data:
            rows = [
                [*row[:_RESUME], min(row[_RESUME], restart.offset), *row[_RESUME + 1 : 8]]
                for row in data["sources"]
            ]
            inputs[topic] = {**data, "sources": rows}
    return Progress(
        offsets={**progress.offsets, **{at: each.offset for at, each in restarts.items()}},
        logs={**progress.logs, **{at: each.log for at, each in restarts.items()}},
        sections={**sections, INPUTS: inputs} if INPUTS in sections else sections,
    )
