"""The map of a log: apps and topics, with types, as text and as a picture.

Apps write to topics and topics are read by apps; each topic has its type, its partitions and its
writers, who own it. Rule: a map is a function of contracts, findings and partition counts. Not done
here: positions on a page (`blueprints/svg`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from streamlog.blueprints.picture import Arrow, Box, Mark, Picture
from streamlog.contracts.contract import Contract, TopicUse
from streamlog.contracts.contract_findings import ContractFinding
from streamlog.errors import quantity


class MappedTopic(msgspec.Struct, frozen=True):
    """A topic with the apps that use it."""

    name: str
    partitions: int | None
    """None if it does not exist yet."""
    types: tuple[tuple[str, str], ...]
    """The names of its key and value types: those of its writers, or else of its readers."""
    writers: Mapping[str, TopicUse]
    """By app."""
    readers: Mapping[str, TopicUse]
    """By app."""

    @property
    def lines(self) -> list[str]:
        """The text about it, without its name: its types, then its partitions."""
        lines = [f"{value} by {key}" for key, value in self.types]
        return (
            lines if self.partitions is None else [*lines, quantity(self.partitions, "partition")]
        )


def map_topics(
    contracts: Iterable[Contract], partitions: Mapping[str, int] | None = None
) -> list[MappedTopic]:
    """Return the topics of these contracts, by name."""
    contracts = list(contracts)
    counts = partitions or {}
    found = []
    for name in sorted({topic for contract in contracts for topic in contract.topics}):
        writers = {each.app: each.topics[name] for each in contracts if name in each.written}
        readers = {each.app: each.topics[name] for each in contracts if name in each.read}
        # What is written is the truth about a topic. Without a writer that is an app, such as a
        # connector's topic, the readers' types are all that is known.
        uses = writers or readers
        types = dict.fromkeys((use.key.name, use.value.name) for use in uses.values())
        found.append(MappedTopic(name, counts.get(name), tuple(types), writers, readers))
    return found


def describe_map(topics: Iterable[MappedTopic], findings: Iterable[ContractFinding] = ()) -> str:
    """Return a map as text: a paragraph per topic, then what does not fit."""
    lines = [line for topic in topics for line in _describe_topic(topic)]
    lines += [f"{'!' if each.breaks else '-'} {each.message}" for each in findings]
    return "\n".join(lines)


def _describe_topic(topic: MappedTopic) -> Iterator[str]:
    yield f"{topic.name}  {', '.join(topic.lines)}"
    for what, uses in (("written by", topic.writers), ("read by", topic.readers)):
        users = []
        for app, use in uses.items():
            parts = use.written_by if uses is topic.writers else use.read_by
            # An app that only declares a topic is named as what writes it.
            named = ", ".join(part for part in parts if part != app)
            users.append(f"{app} ({named})" if named else app)
        if users:
            yield f"  {what:<10} {', '.join(users)}"


def picture_of_map(
    topics: Iterable[MappedTopic], findings: Iterable[ContractFinding] = (), *, title: str
) -> Picture:
    """Return the picture of a map; apps and topics that do not fit are marked."""
    broken = [each for each in findings if each.breaks]
    bad_topics = {each.topic for each in broken}
    bad_apps = {app for each in broken for app in each.readers}
    boxes: dict[str, Box] = {}
    arrows: list[Arrow] = []
    for topic in topics:
        # No topic's or app's name contains a slash.
        id_ = f"topic/{topic.name}"
        boxes[id_] = Box(
            id_, "topic", (topic.name, *topic.lines), mark=_mark(topic.name in bad_topics)
        )
        for app in {**topic.writers, **topic.readers}:
            box = Box(f"app/{app}", "state", (app, "app"), mark=_mark(app in bad_apps))
            boxes.setdefault(box.id, box)
        arrows += [Arrow(f"app/{app}", id_) for app in topic.writers]
        arrows += [Arrow(id_, f"app/{app}") for app in topic.readers]
    return Picture(title, {}, tuple(boxes.values()), tuple(arrows))


def _mark(is_broken: bool) -> Mark:  # noqa: FBT001 - a predicate on its way
    # The colour of what is lost.
    return "removed" if is_broken else ""
