"""Clock names: how time marks identify the way in which an app reads event time from a topic.

A time mark may carry an event time of an app (`records.control_batches`). It means nothing to
another app, nor to this app once it reads event time from another field. So a mark names a clock:
the app's id, and a digest of the function that reads the time. Two functions with equal code are
one clock; a function that changed is another one, for which marks of the old one no longer count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2s
from types import CodeType, FunctionType

from streamlog.nodes.stream_nodes import Entry
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.records.control_batches import clock_of
from streamlog.topology import Topology

DIGEST_BYTES = 6
DEPTH_MAX = 8
"""The depth to which functions within functions are followed."""


def clock_name(app_id: str, topic: TopicSpec) -> str:
    """Return the name of the clock by which an app reads time in this topic."""
    if topic.timestamp is None:
        return clock_of(app_id, "record")
    digest = blake2s(digest_size=DIGEST_BYTES)
    for part in _parts(topic.timestamp, DEPTH_MAX):
        digest.update(part.encode(errors="surrogatepass") + b"\0")
    return clock_of(app_id, digest.hexdigest())


def _parts(item: object, depth: int) -> Iterator[str]:
    """Yield what distinguishes this item, as text that is equal in every process."""
    held = _contents(item)
    if held is None:
        yield repr(item) if isinstance(item, _PLAIN) else _qualified_name(item)
    elif depth:
        yield type(item).__name__
        for each in held:
            yield from _parts(each, depth - 1)


_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def _contents(item: object) -> Iterable[object] | None:
    """Return the parts of an item; None if it counts as a whole."""
    match item:
        case CodeType():
            # Without file names and line numbers: the function may move in its file.
            return (item.co_code.hex(), *item.co_names, *item.co_consts)
        case FunctionType():
            return (item.__code__, *_cells(item), *(item.__defaults__ or ()))
        case partial():
            return (item.func, *item.args, *sorted(item.keywords.items()))
        case tuple() | list():
            return item
        case set() | frozenset():
            # The order of a set differs between processes.
            return sorted(map(repr, item))
        case _:
            return None


def _cells(function: FunctionType) -> list[object]:
    cells = function.__closure__ or ()
    # A recursive function is in its own closure.
    return [cell.cell_contents for cell in cells if cell.cell_contents is not function]


def _qualified_name(item: object) -> str:
    named = item if hasattr(item, "__qualname__") else type(item)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def partners(topology: Topology) -> Mapping[str, frozenset[str]]:
    """Return, for each external topic, the topics that some node waits for with it, and itself."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for sub in topology.subtopologies:
        for name in sub.inputs:
            found[name].add(name)
        for node in sub.nodes:
            origins = [each for each in sub.origins(node) if isinstance(each, Entry)]
            met = {each.topic.name for each in origins if not each.topic.internal}
            for name in met:
                found[name] |= met
    return {
        name: frozenset(met) for name, met in found.items() if not topology.topics[name].internal
    }
