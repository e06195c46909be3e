"""Findings: where the contracts of apps do not fit, each as a sentence.

Every writer of a topic is compared with every reader that is another app: keys, values, and for
joins the partitions. A finding that `breaks` means that records can't be read, or not be joined;
others are notes. A finding `is_new` if the program that is checked causes it: the version of its
contract that ran before did not have it.

Rule: contracts and partition counts go in, findings come out. An app is never compared with itself,
because its own types are one declaration; its state is compared in `blueprints`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Final, Literal, NamedTuple

import msgspec

from streamlog.blueprints.readability import unread_parts
from streamlog.blueprints.unread_part import UnreadKind, UnreadPart
from streamlog.contracts.contract import MALFORMED, Contract
from streamlog.records.partitioners import PARTITIONERS

Side = Literal["key", "value", "partitions"]
"""What a finding is about."""
DEFAULTED: Final = "defaulted"
"""The kind of a finding: a field is gone that a reader has a default for."""
PARTITIONER: Final = "partitioner"
"""The kind of a finding: a writer puts keys into other partitions than a join expects."""
PARTITION_COUNT: Final = "partition_count"
"""The kind of a finding: joined topics have different numbers of partitions."""
NOTES = frozenset({UnreadKind.OPTIONAL, UnreadKind.INCOMPARABLE, DEFAULTED})
"""Kinds that do not certainly break a reader."""
BYTES, TEXT = "BytesSerde", "StrSerde"
"""Forms that read what other serdes have written."""


class ContractFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Where contracts do not fit."""

    message: str
    """The sentence: it names the field, the topic and the apps."""
    topic: str
    side: Side
    path: str
    """The part of the key or value, such as `customer.street`; empty for all of it."""
    kind: str
    """Why it does not fit: one of `UnreadKind` or of the kinds above."""
    writers: list[str]
    """The apps that write the topic so."""
    readers: list[str]
    """The apps that read it otherwise."""
    breaks: bool
    """Whether records can't be read or joined; otherwise, it is a note."""
    is_new: bool
    """Whether the program that is checked causes it."""


class _Misfit(msgspec.Struct, frozen=True):
    """A part that a reader can't read of what a writer writes."""

    side: Side
    path: str
    kind: str
    reader: str
    """What the reader expects, as text."""
    writer: str
    """What is written, as text."""
    is_note: bool = False

    @property
    def id(self) -> tuple[Side, str, str]:
        """What makes it the misfit of an earlier version."""
        return self.side, self.path, self.kind


class _Found(NamedTuple):
    """A misfit in a topic, for all apps that have it."""

    topic: str
    misfit: _Misfit
    is_gone: bool
    """Whether the reader could read it when the writer's former version ran."""
    is_new: bool


class _Pair(NamedTuple):
    writer: Contract
    reader: Contract


def compare_contracts(
    contracts: Iterable[Contract],
    *,
    app: str | None = None,
    before: Contract | None = None,
    partitions: Mapping[str, int] | None = None,
) -> list[ContractFinding]:
    """Return the findings among the contracts of apps, those that break first.

    Args:
        contracts: one contract per app.
        app: returns the findings of this app only; None returns those of all.
        before: the contract of `app` in the version that ran before; None if there is none.
        partitions: the partition counts of topics; a topic without one is not checked for joins.
    """
    known = {contract.app: contract for contract in contracts}
    found: dict[_Found, tuple[dict[str, None], dict[str, None]]] = {}
    for pair in (_Pair(*each) for each in product(known.values(), repeat=2)):
        # An app with itself is no pair. With an app to check, the others are not compared with each
        # other: what they do not fit is not its business.
        apps = {contract.app for contract in pair}
        if len(apps) < len(pair) or not (app is None or app in apps):
            continue
        for each in _misfits(pair, app, before):
            writers, readers = found.setdefault(each, ({}, {}))
            writers[pair.writer.app] = readers[pair.reader.app] = None
    findings = [_finding(each, [*w], [*r]) for each, (w, r) in found.items()]
    findings += _partition_findings(known.values(), app, partitions or {})
    return sorted(findings, key=lambda f: (not f.breaks, f.topic, f.side, f.path, f.readers))


def _misfits(pair: _Pair, app: str | None, before: Contract | None) -> Iterator[_Found]:
    writer, reader = pair
    former = _former(pair, app, before)
    for topic in sorted(writer.written.keys() & reader.read.keys()):
        is_former = topic in former.writer.written and topic in former.reader.read
        there = [*_topic_misfits(topic, former)] if is_former else []
        known = {each.id for each in there}
        for misfit in _topic_misfits(topic, pair):
            # 1. `shop` stops writing `amount`, with consent; `billing` still requires it.
            # 2. `shop` changes something else: the misfit is there, but this version did not cause
            #    it, so it is no reason to refuse the start.
            is_new = misfit.id not in known
            # A field that was never there is not gone.
            is_gone = is_former and is_new and writer.app == app
            if misfit.kind != DEFAULTED or is_gone:
                yield _Found(topic, misfit, is_gone, is_new)


def _former(pair: _Pair, app: str | None, before: Contract | None) -> _Pair:
    """Return the pair with the former version of the program that is checked."""
    nothing = Contract("", {})
    return _Pair(*((before or nothing) if each.app == app else each for each in pair))


def _topic_misfits(topic: str, pair: _Pair) -> Iterator[_Misfit]:
    writer, reader = pair.writer.topics[topic], pair.reader.topics[topic]
    yield from _type_misfits("key", writer.key.form, reader.key.form)
    yield from _type_misfits("value", writer.value.form, reader.value.form)
    if reader.joined_with and writer.partitioner != reader.partitioner:
        # Two functions of different names may be one rule.
        is_certain = {writer.partitioner, reader.partitioner} <= {*PARTITIONERS}
        names = (reader.partitioner, writer.partitioner)
        yield _Misfit("partitions", "", PARTITIONER, *names, is_note=not is_certain)


def _type_misfits(side: Side, written: object, read: object) -> Iterator[_Misfit]:
    # Bytes take everything, and so does text what another program has written as JSON.
    if read == BYTES or (read == TEXT and _is_json(written)):
        return
    found = _unread(read, written)
    for part in found:
        # A program that passes bytes on does not say what they are.
        kind = UnreadKind.INCOMPARABLE if written == BYTES else part.kind
        yield _misfit(side, part, kind)
    # Fields that the reader has a default for break nothing, but their values change silently once
    # they are no longer written.
    reported = {part.path for part in found}
    for part in _unread(read, written, needs_all=True):
        if part.kind is UnreadKind.MISSING and part.path not in reported:
            yield _misfit(side, part, DEFAULTED)


def _unread(read: object, written: object, *, needs_all: bool = False) -> list[UnreadPart]:
    try:
        return unread_parts(read, written, needs_all=needs_all)
    except MALFORMED:
        # Descriptions of other apps come from the log. One that is malformed, or nested deeper than
        # Python calls itself, must not keep this app from starting.
        return [UnreadPart("", UnreadKind.INCOMPARABLE, "another type", "a type")]


def _misfit(side: Side, part: UnreadPart, kind: str) -> _Misfit:
    return _Misfit(side, part.path, str(kind), part.reader, part.writer, is_note=kind in NOTES)


def _is_json(form: object) -> bool:
    return isinstance(form, dict) and [*form] == ["json"]


def _finding(found: _Found, writers: list[str], readers: list[str]) -> ContractFinding:
    misfit = found.misfit
    message = _gone(found, readers) if found.is_gone else ""
    if misfit.kind == PARTITIONER:
        message = _misplaced(found, writers, readers)
    return ContractFinding(
        message=message or _sentence(found, writers, readers),
        topic=found.topic,
        side=misfit.side,
        path=misfit.path,
        kind=misfit.kind,
        writers=writers,
        readers=readers,
        breaks=not misfit.is_note,
        is_new=found.is_new,
    )


def _gone(found: _Found, readers: list[str]) -> str:
    """Return the sentence for what the writer's former version wrote otherwise, if it has one."""
    misfit = found.misfit
    field, what = _part_names(found)
    apps, read = _names(readers), _verb(readers, "read")
    match misfit.kind:
        case UnreadKind.MISSING:
            return f"{field} is gone from `{found.topic}`; {apps} {read} it"
        case UnreadKind.TYPE | UnreadKind.CODING:
            now = "is" if misfit.path else "are"
            return f"{what} {now} {misfit.writer} now; {apps} {read} {misfit.reader}"
        case "defaulted":
            have = "has" if len(readers) == 1 else "have"
            return f"{field} is gone from `{found.topic}`; {apps} {have} a default for it"
    return ""


def _sentence(found: _Found, writers: list[str], readers: list[str]) -> str:
    misfit = found.misfit
    field, what = _part_names(found)
    left, right = _names(writers), _names(readers)
    write, read, require = (
        _verb(writers, "write"),
        _verb(readers, "read"),
        _verb(readers, "require"),
    )
    match misfit.kind:
        case UnreadKind.MISSING:
            return f"{left} {write} `{found.topic}` without {field}; {right} {require} it"
        case UnreadKind.OPTIONAL:
            return f"{what} may be missing where {left} {write} it; {right} {require} it"
        case UnreadKind.UNKNOWN_FIELD:
            refuse = _verb(readers, "refuse")
            return f"{left} {write} {what}; {right} {refuse} fields without a declaration"
        case UnreadKind.LIMIT:
            return f"{left} {write} {what} with {misfit.writer}; {right} {require} {misfit.reader}"
        case UnreadKind.INCOMPARABLE:
            return (
                f"{left} {write} {what} as {misfit.writer}, and {right} {read} {misfit.reader}: "
                "the declarations do not tell whether that fits"
            )
    return f"{left} {write} {what} as {misfit.writer}; {right} {read} {misfit.reader}"


def _misplaced(found: _Found, writers: list[str], readers: list[str]) -> str:
    """Return the sentence for keys in other partitions than a join expects."""
    misfit = found.misfit
    partition = _verb(writers, "partition")
    join, expect = _verb(readers, "join"), _verb(readers, "expect")
    return (
        f"{_names(writers)} {partition} `{found.topic}` by {misfit.writer}; {_names(readers)} "
        f"{join} it with other topics and {expect} {misfit.reader}"
    )


def _part_names(found: _Found) -> tuple[str, str]:
    """Return the name of the part by itself, and in its topic."""
    path, side = found.misfit.path, found.misfit.side
    keys = " of the keys" if side == "key" else ""
    field = f"field `{path}`{keys}" if path else f"the {side}s"
    return field, f"{field} of `{found.topic}`"


def _verb(apps: list[str], verb: str) -> str:
    return f"{verb}s" if len(apps) == 1 else verb


def _names(apps: Iterable[str]) -> str:
    """Return names as text: "`a`, `b` and `c`"."""
    *first, last = (f"`{each}`" for each in apps)
    return f"{', '.join(first)} and {last}" if first else last


def _partition_findings(
    contracts: Iterable[Contract], app: str | None, partitions: Mapping[str, int]
) -> Iterator[ContractFinding]:
    joins = (
        (contract.app, topic, other)
        for contract in contracts
        if app in {None, contract.app}
        for topic, use in contract.topics.items()
        for other in use.joined_with
        # Each pair once.
        if topic < other
    )
    for joining, topic, other in joins:
        counts = (partitions.get(topic), partitions.get(other))
        if None in counts or counts[0] == counts[1]:
            continue
        yield ContractFinding(
            message=f"`{joining}` joins `{topic}` with `{other}`, which needs equal numbers of "
            f"partitions: they have {counts[0]} and {counts[1]}",
            topic=topic,
            side="partitions",
            path="",
            kind=PARTITION_COUNT,
            writers=[],
            readers=[joining],
            breaks=True,
            is_new=True,
        )
