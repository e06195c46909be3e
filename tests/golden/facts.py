"""Facts without a topology: which windows a time is in, what is refused, what keys look like.

They are asked of the public API: windows by what the driver writes for one record.
"""

from __future__ import annotations

from typing import Any

from streamlog import App, Emit, Record, Windowed, session, sliding, tumbling
from streamlog.client.producer.accumulator import murmur2, partition_of_key
from streamlog.durations import moment, when_ms
from streamlog.errors import StreamlogError
from tests.golden.adapter import join_window, ms, windows_of
from tests.golden.compare import Case
from tests.golden.functions import Unsupported

HOUR_MS = 3_600_000
FAR_MS = 1_000 * HOUR_MS


class Asked(dict[str, Any]):
    """A fact or one of its queries; a field that it does not have makes it `Unsupported`."""

    def __missing__(self, field: str) -> Any:
        raise Unsupported(f"fact {self.get('kind')!r} without the field {field!r}: {dict(self)}")

    def __or__(self, other: dict[str, Any]) -> Asked:  # type: ignore[override] # a dict's own gives a plain dict
        return Asked({**self, **other})


def wrong_answers(given: Case) -> list[str]:
    """The queries whose answer differs from the fact, as lines of the report.

    Raises:
        Unsupported: the fact is of a kind, or has fields, that the runner does not know.
    """
    fact = Asked(given)
    answer = ANSWERS.get(fact["kind"])
    if answer is None:
        raise Unsupported(f"fact {fact['kind']!r}")
    found = [(query, answer(fact | query)) for query in fact["queries"]]
    return [f"{query}: {said}" for query, said in found if said is not None]


def _windows_for(asked: Case) -> str | None:
    kind = asked.get("type") or ("tumbling" if asked["size"] == asked["advance"] else "hopping")
    found = _counted(asked | {"type": kind, "grace": FAR_MS}, [asked["ts"]])
    wanted = [tuple(window) for window in asked["windows"]]
    return None if found == wanted else f"windows {found}"


def _counted(spec: Case, times: list[int]) -> list[tuple[int, int]]:
    """The windows of the last of some records."""
    app = App("windows")
    source = app.topic("in", key=str, value=str)
    late: list[Record[str, str]] = []
    windowed = app.stream(source).group_by_key().windowed(windows_of(spec))
    table = windowed.late(late.append).emit(Emit.UPDATE).count(name="n")
    out = app.topic("out", key=object, value=int, key_serde=table.side.place.key.serde)
    table.changes().to(out)
    with app.test() as t:
        for at in times[:-1]:
            t.input(source).send("", key="last" if spec["type"] == "session" else f"{at}", at=at)
        before = len(t.output(out).records)
        t.input(source).send("", key="last", at=times[-1])
        keys: list[Windowed[str]] = [record.key for record in t.output(out).records[before:]]
    return [(when_ms(key.start), when_ms(key.end)) for key in keys]


def _window_close(asked: Case) -> str | None:
    """Whether a record for a window comes too late once time has come so far."""
    kind = asked.get("type", "tumbling")
    size = asked.get("size", asked.get("difference", 0))
    end = asked["window"][1] if "window" in asked else asked["end"]
    start = asked["window"][0] if "window" in asked else asked.get("start", end - size)
    names = [name for name in ("stream_time", "streamTime", "ts") if name in asked]
    time = asked[names[0] if names else "stream_time"]
    spec = Asked(type=kind, size=end - start, advance=end - start, grace=0) | asked
    before: list[int] = []
    if kind == "session":
        before = [*range(start, end, asked["gap"] or 1), end]
    found = _counted(spec, [*before, time, start if kind in {"tumbling", "hopping"} else end])
    is_open = bool(found) if kind == "session" else (start, end) in found
    return None if is_open is not asked["closed"] else f"open: {is_open}"


def _config(asked: Case) -> str | None:
    check = CONFIGURED.get(asked["spec"])
    if check is None:
        raise Unsupported(f"fact 'config' of {asked['spec']!r}")
    try:
        check(asked)
    except StreamlogError as error:
        return f"refused: {error}" if asked["valid"] else None
    return None if asked["valid"] else "accepted"


def _defined(asked: Case) -> None:
    windows_of(asked | {"type": asked["spec"]})


def _retained(asked: Case) -> None:
    tumbling(ms(asked["size"]), grace=ms(asked["grace"]), retention=ms(asked["retention"]))


def _stream_table_grace(asked: Case) -> None:
    app = App("grace")
    stream, topic = (app.topic(name, key=str, value=str) for name in ("stream", "table"))
    history = asked.get("history", asked.get("retention"))
    versioned = {} if history is None else {"history": ms(history)}
    table = app.table(topic, name="t", **versioned)
    joined: Any = app.stream(stream).join
    joined(table, lambda a, b: a + b, as_of=True, grace=ms(asked["grace"]), name="j")
    app.topology()


def _join_partitions(asked: Case) -> None:
    counts = asked.get("partitions") or [asked["left"], asked["right"]]
    app = App("partitions")
    stream, topic = (
        app.topic(name, key=str, value=str, partitions=count)
        for name, count in zip(("stream", "table"), counts, strict=True)
    )
    app.stream(stream).join(app.table(topic, name="t"), lambda a, b: a + b)
    with app.test():
        pass


CONFIGURED = {
    "tumbling": _defined,
    "hopping": _defined,
    "sliding": _defined,
    "session": _defined,
    "join_window": join_window,
    "window_retention": _retained,
    "stream_table_grace": _stream_table_grace,
    "join_partitions": _join_partitions,
}


def _windowed_key_bytes(asked: Case) -> str | None:
    size_ms = asked["end"] - asked["start"]
    kind = session if asked["type"] == "session" else sliding
    app = App("bytes")
    out = app.topic("out", key=Windowed[str], value=int, windows=kind(ms(size_ms)))
    found = out.spec.key.dumps(
        Windowed(asked["key"], moment(asked["start"]), moment(asked["end"]))
    ).hex()
    return None if found == asked["hex"] else found


def _murmur2(asked: Case) -> str | None:
    key = bytes.fromhex(asked["hex"]) if "hex" in asked else asked["key"].encode()
    if "partitions" in asked:
        found = partition_of_key(key, asked["partitions"])
        return None if found == asked["partition"] else f"partition {found}"
    names = [name for name in ("murmur2", "hash", "value") if name in asked]
    wanted = asked[names[0] if names else "hash"]
    found = murmur2(key)
    return None if (found - wanted) % 2**32 == 0 else f"hash {found}"


ANSWERS = {
    "windows_for": _windows_for,
    "window_close": _window_close,
    "config": _config,
    "windowed_key_bytes": _windowed_key_bytes,
    "murmur2": _murmur2,
}
