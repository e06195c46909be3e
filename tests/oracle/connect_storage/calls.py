"""Calls: random changes of what Connect's topics hold, each made by one of the two sides.

Both sides know the same calls: `BackingStores.java` by Kafka Connect's stores, `our_stores.py` by
the records of `streamlog/connect`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, NamedTuple

NAMES: Final = (
    *("a", "a-1", "b 2/c%", "é:ü", "target-state-a", "commit-a", "task-a-0"),
    *("x:connector-a", "restart-connector-a", "0"),
)
"""Names that look like the keys of other records among them."""
STATES: Final = ("STARTED", "PAUSED", "STOPPED")
STATUSES: Final = (
    *("UNASSIGNED", "RUNNING", "PAUSED", "STOPPED", "FAILED", "RESTARTING", "DESTROYED"),
)
TEXTS: Final = (
    *("", "x", "null", "${file:/a:b}", 'a "quoted"\n\tline\\', "é😀", "\u0000\u2028"),
    *("[1,2]", "y" * 5_000),
)
NUMBERS: Final = (0, 1, -1, 2**31, -(2**63), 2**63 - 1)
STRANGE_VALUES: Final = (
    *("[]", "7", '"x"', "{", '{"properties":[]}', '{"state":"HAPPY"}', '{"tasks":"x"}'),
)
KEYS: Final = ("at", "", "é", "position", "x y")


class Call(NamedTuple):
    """A change, and whose stores make it."""

    is_ours: bool
    asked: dict[str, Any]


def random_calls(random: Random, count: int) -> Iterator[Call]:
    """Yield calls; the same for the same `random`."""
    for _ in range(count):
        make = random.choices(list(_KINDS), weights=list(_KINDS.values()))[0]
        asked = make(random)
        # Kafka Connect writes counts for its own rounds of fencing, which are not needed here; what
        # is in a transaction that was aborted, or is no record of Connect, anyone may write.
        is_ours = asked["call"] in ("aborted", "strange") or random.random() < 0.5
        yield Call(is_ours and asked["call"] != "fencing", asked)


def _config(random: Random) -> dict[str, str]:
    keys = random.sample(
        ("name", "connector.class", "a.b", "", "é", "tasks.max"), random.randint(0, 5)
    )
    return {key: random.choice(TEXTS) for key in keys}


def _named(call: str, random: Random, **others: Any) -> dict[str, Any]:
    # Mostly the same two: they are changed again and again.
    name = random.choice(NAMES if random.random() < 0.4 else NAMES[:2])
    return {"call": call, "name": name, **others}


def _connector(random: Random) -> dict[str, Any]:
    state = random.choice((None, None, *STATES))
    return _named("connector", random, config=_config(random), state=state)


def _delete(random: Random) -> dict[str, Any]:
    return _named("delete", random)


def _tasks(random: Random) -> dict[str, Any]:
    # More than ten: the numbers are no longer in the order of their texts.
    count = random.choice((0, 1, 1, 2, 3, 12))
    return _named("tasks", random, tasks=[_config(random) for _ in range(count)])


def _target(random: Random) -> dict[str, Any]:
    return _named("target", random, state=random.choice(STATES))


def _restart(random: Random) -> dict[str, Any]:
    both = {each: random.random() < 0.5 for each in ("include_tasks", "only_failed")}
    return _named("restart", random, **both)


def _session_key(random: Random) -> dict[str, Any]:
    made = base64.b64encode(random.randbytes(random.choice((1, 32, 64)))).decode()
    algorithm = random.choice(("HmacSHA256", "HmacSHA512"))
    created = random.randrange(2**44)
    return {"call": "session_key", "key": made, "algorithm": algorithm, "created": created}


def _level(random: Random) -> dict[str, Any]:
    name = random.choice(("root", "org.apache.kafka", "é"))
    return {"call": "level", "name": name, "level": random.choice(("DEBUG", "WARN", "OFF"))}


def _fencing(random: Random) -> dict[str, Any]:
    return _named("fencing", random, count=random.randrange(5))


def _status(random: Random) -> dict[str, Any]:
    return _named(
        "status",
        random,
        task=random.choice((None, 0, 1, 11)),
        state=random.choice(STATUSES),
        worker=random.choice(("127.0.0.1:8083", "worker-2:8083")),
        generation=random.randrange(4),
        trace=random.choice((None, None, *TEXTS)),
        version=random.choice((None, "4.4.0", "é")),
        is_safe=random.random() < 0.5,
    )


def _topic(random: Random) -> dict[str, Any]:
    topic, at = random.choice(("t", "t-1", "A.b_c")), random.randrange(2**44)
    return _named("topic", random, topic=topic, task=random.randrange(3), at=at)


def _topic_forgotten(random: Random) -> dict[str, Any]:
    return _named("topic_forgotten", random, topic=random.choice(("t", "t-1", "A.b_c")))


def _offset(random: Random) -> dict[str, Any]:
    scalars = (None, True, False, 0.5, -1e300, *NUMBERS, *TEXTS)
    # One field: the key that both sides write first is then the same; see `_known_part`.
    part = {random.choice(KEYS): random.choice((*NUMBERS, *TEXTS[:4]))}
    fields = random.sample(KEYS, random.randint(0, 4))
    offset = {key: random.choice(scalars) for key in fields} if random.random() < 0.8 else None
    return _named("offset", random, part=part, offset=offset)


def _aborted(random: Random) -> dict[str, Any]:
    """Tasks in a transaction that comes to nothing."""
    return {**_tasks(random), "call": "aborted"}


def _strange(random: Random) -> dict[str, Any]:
    """Return a record that is none of Connect's, or of a later version's."""
    name = random.choice(NAMES)
    keys = (
        *(f"connector-{name}", f"task-{name}-0", f"task-{name}", f"commit-{name}"),
        *(f"target-state-{name}", f"restart-connector-{name}", "session-key"),
        *(f"status-connector-{name}", f"status-task-{name}-0", f"status-topic-t{name}"),
        *(f'["{name}"]', f'["{name}",[]]', "connector", "later-kind-a", "", "{"),
    )
    topic = random.choice(("config", "status", "offset"))
    return {
        "call": "strange",
        "topic": topic,
        "key": random.choice(keys),
        "value": random.choice(STRANGE_VALUES),
    }


_KINDS: Final[dict[Callable[[Random], dict[str, Any]], int]] = {
    _connector: 8, _delete: 3, _tasks: 8, _target: 4, _restart: 2, _session_key: 1, _level: 1,
    _fencing: 1, _status: 8, _topic: 3, _topic_forgotten: 2, _offset: 8, _aborted: 1, _strange: 3,
}  # fmt: skip
