"""How the windowed keys of a topic are written: as the windows say that they come from.

A topic that is declared for `Windowed[K]` has the layout of what is written to it; an app that only
reads it has to declare the windows. Rule of the file: the serde of a topic is one object that
everybody shares, and learns its layout once.
"""

from __future__ import annotations

from typing import Any

from streamlog.dsl.shapes import Shape
from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import Serde, WindowedSerde, serde_for
from streamlog.topology import TopicSpec
from streamlog.windows.definitions import Windows
from streamlog.windows.keys import layout_of


def topic_key(name: str, declared: object, windows: Windows | None) -> Serde[Any]:
    """The serde of a topic's keys.

    Raises:
        SerdeError: the type can't be written down.
        TopologyError: there are windows, and the keys are not windowed.
    """
    try:
        serde = serde_for(declared)
    except SerdeError as error:
        raise SerdeError(f"the key of topic {name!r}: {error}") from error
    if isinstance(serde, WindowedSerde):
        return WindowedSerde(serde.key_serde, None if windows is None else layout_of(windows))
    if windows is not None:
        raise TopologyError(f"topic {name!r} has windows, but no key=Windowed[...] for them")
    return serde


def agree(key: Shape, topic: TopicSpec) -> None:
    """Let the topic have the layout of the keys that are written to it.

    Raises:
        TopologyError: it has another one.
    """
    here, there = key.given, topic.key
    if not isinstance(here, WindowedSerde) or not isinstance(there, WindowedSerde):
        return
    if there.layout is None:
        there.layout = here.layout
    elif here.layout is not None and there.layout.form and there.layout != here.layout:
        raise TopologyError(
            f"topic {topic.name!r} has keys of other windows already, and Kafka's windowed keys "
            "don't say of which they are: write these to a topic of their own"
        )


def alike(keys: Shape, *others: Shape) -> Shape:
    """Of the keys of several streams that become one; of windows of several kinds, both borders."""
    serde = keys.given
    layouts = [getattr(each.given, "layout", None) for each in (keys, *others)]
    if not isinstance(serde, WindowedSerde) or all(each == layouts[0] for each in layouts):
        return keys
    return Shape(given=WindowedSerde(serde.key_serde))
