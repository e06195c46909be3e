"""Ways: what sources are called where records of them come by more than one feed.

Two repartition topics may be made of one source and meet again. What was read of the one says
nothing of what is still to come by the other, so whoever keeps time source by source takes them
for two.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.processing.columns import Feed
from streamlog.windows.emit import Source


def ways_of(feeds: Sequence[Feed]) -> dict[Feed, dict[Source, Source]]:
    """The sources of each feed, and what each is called: by the first feed it keeps its name."""
    known: set[Source] = set()
    found: dict[Feed, dict[Source, Source]] = {}
    for feed in feeds:
        by, _ = feed.source
        sources = [source for source, _, _ in feed.heard_of()]
        found[feed] = {
            (name, number): (f"{name} by {by}" if (name, number) in known else name, number)
            for name, number in sources
        }
        known.update(sources)
    return found
