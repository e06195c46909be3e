"""Random apps whose windows are all lowered to columns, and random histories for them.

Each app has many pipelines, each with its own partitions, windows and records, so that one Spark
job runs them all. Records come late, at equal times, or without values; partitions and whole topics
are empty; windows overlap, start at an offset, and are retained after they close.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from streamlog import App, Topic, Windowed, agg, hopping, tumbling
from streamlog.windows.definitions import Windows
from tests.equality.programs import Fed, Program

KEYS = ("ab", "ac", "b", "cd", "e", "fg", "")
BEGIN_MS = 1_000_000
SPAN_MS = 3_000


@dataclass
class Totals:
    """Aggregates of the numbers in a window."""

    count: int
    total: int
    least: int
    most: int


def program(app: App, seed: int, pipelines: int) -> Program:
    """Build an app of this many pipelines."""
    rng = Random(seed)
    program_ = Program(app)
    for number in range(pipelines):
        partitions = rng.randint(1, 3)
        source = app.topic(f"in-{number}", key=str, value=int, partitions=partitions)
        program_.inputs[source.name] = partitions
        grouped = app.stream(source).group_by(lambda _, v: KEYS[(v or 3) % 7], name=f"by-{number}")
        windowed = grouped.windowed(windows_of(rng))
        name, to = f"windows-{number}", f"out-{number}"
        if rng.random() < 0.3:
            counts = app.topic(to, key=Windowed[str], value=int, partitions=rng.randint(1, 2))
            changes = windowed.count(name=name).changes()
            changes.to(counts)
        else:
            out = app.topic(to, key=Windowed[str], value=Totals, partitions=rng.randint(1, 2))
            rows = windowed.agg(
                Totals,
                name=name,
                count=agg.count(),
                total=agg.sum(lambda v: v),
                least=agg.min(lambda v: -v),
                most=agg.max(lambda v: v % 5),
            )
            changed = rows.changes()
            changed.to(out)
            if rng.random() < 0.4:
                totals = changed.map(lambda k, v: (k.key[:1], v.total))
                again = totals.group_by(lambda k, _: k, name=f"again-{number}").windowed(
                    windows_of(rng)
                )
                last: Topic[Windowed[str], int] = app.topic(
                    f"last-{number}", key=Windowed[str], value=int, partitions=2
                )
                again.reduce(
                    lambda a, b: (a * 31 + b) % 1_000_003, name=f"last-{number}-rows"
                ).changes().to(last)
                program_.outputs.append(last)  # type: ignore[arg-type]
        program_.outputs.append(app.topics[to])  # type: ignore[arg-type]
    return program_


def windows_of(rng: Random) -> Windows:
    """Return random windows that are lowered."""
    size_ms = rng.choice([50, 100, 333])
    grace_ms = rng.choice([0, 0, 40, 150])
    kept_ms = size_ms + grace_ms + rng.choice([0, 0, 300])
    grace, kept = f"{grace_ms}ms", f"{kept_ms}ms"
    if rng.random() < 0.4:
        return hopping(f"{size_ms}ms", f"{rng.choice([25, 50])}ms", grace=grace, retention=kept)
    offset = f"{rng.choice([0, 0, 17])}ms"
    return tumbling(f"{size_ms}ms", grace=grace, retention=kept, offset=offset)


def history(program_: Program, seed: int, records: int = 120) -> list[Fed]:
    """Return random records for all input topics."""
    rng = Random(seed)
    fed: list[Fed] = []
    for topic, partitions in program_.inputs.items():
        used = rng.choices(range(partitions), k=partitions)
        pace_ms = {partition: rng.choice([5, 20, 40]) for partition in range(partitions)}
        times_ms = dict.fromkeys(range(partitions), BEGIN_MS)
        for _ in range(rng.choice([0, records, records, records])):
            partition = rng.choice(used)
            times_ms[partition] += rng.choice([0, 0, 1, pace_ms[partition]])
            late_ms = rng.choice([0, 0, 0, rng.randrange(400)])
            value = None if rng.random() < 0.05 else rng.randrange(10_000)
            key = rng.choice(KEYS)
            fed.append(Fed(topic, partition, key, value, times_ms[partition] - late_ms))
    return fed
