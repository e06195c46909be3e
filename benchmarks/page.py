"""`make bench-page`: the tables of docs/benchmarks.md, from the newest line of the history.

A table stands between two comments with its name. Each cell has the median of the runs, and in
brackets the least and the most; the last column says how many times ours goes into the peer's, or
the other way round where more is better.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.compared import Kept, history
from benchmarks.engine.participants import OURS, STREAMS
from benchmarks.log import A_FUTURE_EACH, IN_BULK, PEER_A_CALLBACK_EACH, PEER_IN_BULK
from conformance.kafka import NEWEST

PAGE: Final = Path(__file__).parent.parent / "docs" / "benchmarks.md"
MARKERS: Final = "<!-- {} by `make bench-page` -->\n", "<!-- end of {} -->\n"
KAFKA: Final = f"Kafka {NEWEST}"
MORE_IS_BETTER: Final = {"records/s", "times"}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: a title, ours in the history, and the same of each peer."""

    title: str
    ours: str
    theirs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A table: its peers, and its rows."""

    peers: tuple[str, ...]
    rows: tuple[Row, ...]


def _at_the_broker(title: str, row: str, what: str = "broker") -> Row:
    return Row(title, f"{row}: ours, {what}", (f"{row}: {KAFKA}, {what}",))


def _by_workers(title: str, job: str, variant: str, peers: Sequence[str]) -> Row:
    return Row(title, f"{job} {OURS} {variant}", tuple(f"{job} {each}" for each in peers))


_THROUGH: Final = "through to a consumer"
_SYNCED: Final = f"{_THROUGH}, each message synced"
_JAVA: Final = "Java's producer performance test"
_CREATE: Final = "create 5,000 partitions"
_RESTART: Final = "restart after a kill, 5,000 filled partitions"
_RESTART_OF_MANY: Final = "restart after a kill, 20,000 filled partitions"
_TO_KAFKA: Final = "mirror to Kafka"
_PACED: Final = "acks=all, 1,000 a second"
_ONE: Final = f"{_PACED}, to one broker"
_THREE: Final = f"{_PACED}, to three, a replica on each"
_ON_DISK: Final = "a record of a task with 5,000,000 rows on disk"


def _beside_confluent(title: str, ours: str, theirs: str, what: str) -> Row:
    return Row(title, f"{ours}, {what}", (f"{theirs}, {what}",))


TABLES: Final[Mapping[str, Comparison]] = {
    "broker": Comparison(
        (KAFKA,),
        (
            _at_the_broker("write in big batches, CPU a message", "produce, big batches"),
            _at_the_broker(
                "write one message a request, CPU a message", "produce, 1 message a request"
            ),
            _at_the_broker("16 KB fetches, CPU a message", "consume, 16 KB fetches, 16 KB batches"),
            _at_the_broker("1,000 a second through, p50", _THROUGH, "p50"),
            _at_the_broker("1,000 a second through, p99", _THROUGH, "p99"),
            _at_the_broker("1,000 a second through, CPU a message", _THROUGH),
            _at_the_broker("1,000 a second through, each synced to disk, p50", _SYNCED, "p50"),
            _at_the_broker("1,000 a second through, each synced to disk, p99", _SYNCED, "p99"),
            _at_the_broker("1,000 a second through, each synced to disk, CPU a message", _SYNCED),
            _at_the_broker("Java's producer performance test", _JAVA, "rate"),
            _at_the_broker("Java's producer performance test, CPU a message", _JAVA),
            Row(
                "most memory of the broker",
                "ours: most memory of the broker",
                (f"{KAFKA}: most memory of the broker",),
            ),
        ),
    ),
    "streams": Comparison(
        (STREAMS,),
        (
            _by_workers("filter, map, and write", "j1", "typed", [STREAMS]),
            _by_workers("windows, a row for every update", "j2", "built-in", [STREAMS]),
            _by_workers("windows, final rows", "j2-final", "built-in", [STREAMS]),
            _by_workers("join of a stream with a table", "j3", "typed", [STREAMS]),
            Row("windows with 5,000,000 keys on disk, the task without its log", _ON_DISK),
            Row(
                "most memory of the worker, windows",
                f"j2 {OURS} built-in: most memory",
                (f"j2 {STREAMS}: most memory",),
            ),
        ),
    ),
    "client": Comparison(
        ("confluent-kafka",),
        (
            _beside_confluent("awaited in bulk, rate", IN_BULK, PEER_IN_BULK, "rate"),
            _beside_confluent("awaited in bulk, CPU a record", IN_BULK, PEER_IN_BULK, "client"),
            _beside_confluent(
                "a future or callback each, rate", A_FUTURE_EACH, PEER_A_CALLBACK_EACH, "rate"
            ),
            _beside_confluent(
                "a future or callback each, CPU a record",
                A_FUTURE_EACH,
                PEER_A_CALLBACK_EACH,
                "client",
            ),
        ),
    ),
    "partitions": Comparison(
        (),
        (
            Row("create 5,000 partitions in one request", _CREATE),
            Row("write to 5,000 partitions, CPU a record", "produce over all partitions, broker"),
            Row("read 5,000 partitions as a group", "consume all partitions as a group, rate"),
            Row("restart after `kill -9`, 5,000 filled partitions", _RESTART),
            Row("memory after that restart", f"{_RESTART}: resident"),
            Row("restart after `kill -9`, 20,000 filled partitions", _RESTART_OF_MANY),
            Row("memory after that restart", f"{_RESTART_OF_MANY}: resident"),
            Row(
                "idle broker of three, no topics, CPU",
                "idle cluster, 0 partitions: CPU of a broker",
            ),
            Row(
                "idle broker of three, 1,000 partitions, CPU",
                "idle cluster, 1,000 partitions: CPU of a broker",
            ),
            Row("`acks=all` at 1,000 a second, one broker, p50", f"{_ONE}, p50"),
            Row("`acks=all` at 1,000 a second, three brokers, p50", f"{_THREE}, p50"),
            Row("`acks=all` at 1,000 a second, three brokers, p99", f"{_THREE}, p99"),
            Row("`acks=all` at 1,000 a second, one broker, CPU a message", f"{_ONE}, broker"),
            Row("`acks=all` at 1,000 a second, three brokers, CPU a message", f"{_THREE}, broker"),
        ),
    ),
    "histories": Comparison(
        (),
        (
            Row("read a topic as a frame, CPU a row", "read as a frame: CPU"),
            Row("read those rows of Parquet, CPU a row", "the same rows of Parquet: CPU"),
            Row("history of a map, CPU a record", "history, map: CPU"),
            Row(
                "history of a windowed count, CPU a record",
                "history, windowed count, lowered: CPU",
            ),
            Row(
                "history of a windowed count, record by record, CPU a record",
                "history, windowed count, by tasks: CPU",
            ),
        ),
    ),
    "mirrors": Comparison(
        ("MirrorMaker 2",),
        (
            Row("mirror between clusters, rate", "mirror"),
            Row("mirror to Apache Kafka, rate", _TO_KAFKA, ("MirrorMaker 2",)),
            Row(
                "mirror to Apache Kafka, CPU of a million records, all processes",
                f"{_TO_KAFKA}: CPU of all",
                ("MirrorMaker 2: CPU of all",),
            ),
            Row(
                "lag of a mirror at 1,000 records a second, p99",
                "lag of a mirror at 1,000 records/s, p99",
            ),
        ),
    ),
}


def table(comparison: Comparison, figures: Mapping[str, Kept]) -> str:
    """Return it as Markdown, without the rows, or a table, that have no figure of ours. Pure."""
    if not any(row.ours in figures for row in comparison.rows):
        return ""
    heads = ["", "streamlog", *comparison.peers]
    if comparison.peers:
        heads.append("times")
    lines = [_line(heads), _line(["---", *["---:"] * (len(heads) - 1)])]
    lines += [
        _line([row.title, _cell(ours), *_others(row, ours, comparison, figures)])
        for row in comparison.rows
        if (ours := figures.get(row.ours)) is not None
    ]
    return "\n".join(lines) + "\n"


def _others(
    row: Row, ours: Kept, comparison: Comparison, figures: Mapping[str, Kept]
) -> Iterator[str]:
    if not comparison.peers:
        return
    found = [figures.get(each) for each in row.theirs]
    found += [None] * (len(comparison.peers) - len(found))
    yield from ("" if each is None else _cell(each) for each in found)
    yield " / ".join(_times(ours, each) for each in found if each is not None)


def _times(ours: Kept, theirs: Kept) -> str:
    is_more_better = ours[-1] in MORE_IS_BETTER
    return short(ours[0] / theirs[0] if is_more_better else theirs[0] / ours[0])


def _cell(kept: Kept) -> str:
    middle, least, most, runs, unit = kept
    said = f"{short(middle)} {unit}"
    return f"{said} ({short(least)} to {short(most)})" if runs > 1 else said


def short(value: float) -> str:
    """Return a figure with three digits that count. Pure."""
    if value >= 100:  # noqa: PLR2004 - three digits
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def written(page: str, figures: Mapping[str, Kept]) -> str:
    """Return the page with all tables made anew. Pure.

    Raises:
        ValueError: the page lacks the place of a table.
    """
    for name, comparison in TABLES.items():
        begin, end = (marker.format(name) for marker in MARKERS)
        place = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        content = f"{begin}\n{table(comparison, figures)}\n{end}"
        page, count = place.subn(lambda _, content=content: content, page)  # type: ignore[misc]
        if count != 1:
            raise ValueError(f"{PAGE.name}: {count} places for the table {name}, not one")
    return page


def newest_figures() -> Mapping[str, Kept]:
    """Return those of the newest line of the history that has any."""
    lines = map(json.loads, history())
    found: Mapping[str, Kept] = [each["figures"] for each in lines if "figures" in each][-1]
    return found


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(), newest_figures()))
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
