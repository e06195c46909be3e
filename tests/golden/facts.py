"""Facts without a topology: windows of a time, refused definitions, and bytes of keys.

The public API answers them: windows by the driver's rows for one record.
"""

from __future__ import annotations

from typing import Any

from streamlog import App, Emit, Record, Windowed, session, sliding, tumbling
from streamlog.durations import moment, when_ms
from streamlog.errors import StreamlogError
from streamlog.records.murmur2 import murmur2, partition_of_key
from tests.golden.adapter import join_window, ms, windows_of
from tests.golden.compare import Case
from tests.golden.functions import Unsupported

HOUR_MS = 3_600_000
FAR_MS = 1_000 * HOUR_MS


class Query(dict[str, Any]):
    """A fact or one of its queries; reading a missing field raises `Unsupported`."""

    def __missing__(self, field: str) -> Any:
        raise Unsupported(f"fact {self.get('kind')!r} without the field {field!r}: {dict(self)}")

    def __or__(self, other: dict[str, Any]) -> Query:  # type: ignore[override] # a dict's own gives a plain dict
        return Query({**self, **other})


def wrong_answers(case: Case) -> list[str]:
    """Return the queries whose answer differs from the fact, as lines of the report.

    Raises:
        Unsupported: the fact is of a kind, or has fields, that the runner does not know.
    """
    fact = Query(case)
    answer = ANSWERS.get(fact["kind"])
    if answer is None:
        raise Unsupported(f"fact {fact['kind']!r}")
    found = [(query, answer(fact | query)) for query in fact["queries"]]
    return [f"{query}: {text}" for query, text in found if text is not None]


def _windows_for(query_: Case) -> str | None:
    kind = query_.get("type") or ("tumbling" if query_["size"] == query_["advance"] else "hopping")
    found = _last_windows(query_ | {"type": kind, "grace": FAR_MS}, [query_["ts"]])
    wanted = [tuple(window) for window in query_["windows"]]
    return None if found == wanted else f"windows {found}"


def _last_windows(spec: Case, times: list[int]) -> list[tuple[int, int]]:
    """Return the windows of the last record."""
    app = App("windows")
    source = app.topic("in", key=str, value=str)
    late: list[Record[str, str]] = []
    windowed = app.stream(source).group_by_key().windowed(windows_of(spec))
    table = windowed.late(late.append).emit(Emit.UPDATE).count(name="n")
    out = app.topic("out", key=object, value=int, key_serde=table.side.position.key.serde)
    table.changes().to(out)
    with app.test() as t:
        for at in times[:-1]:
            t.input(source).send("", key="last" if spec["type"] == "session" else f"{at}", at=at)
        before = len(t.output(out).records)
        t.input(source).send("", key="last", at=times[-1])
        keys: list[Windowed[str]] = [record.key for record in t.output(out).records[before:]]
    return [(when_ms(key.start), when_ms(key.end)) for key in keys]


def _window_close(query_: Case) -> str | None:
    """Check whether a window is closed at a stream time."""
    kind = query_.get("type", "tumbling")
    size = query_.get("size", query_.get("difference", 0))
    end = query_["window"][1] if "window" in query_ else query_["end"]
    start = query_["window"][0] if "window" in query_ else query_.get("start", end - size)
    names = [name for name in ("stream_time", "streamTime", "ts") if name in query_]
    time = query_[names[0] if names else "stream_time"]
    spec = Query(type=kind, size=end - start, advance=end - start, grace=0) | query_
    before: list[int] = []
    if kind == "session":
        before = [*range(start, end, query_["gap"] or 1), end]
    found = _last_windows(spec, [*before, time, start if kind in {"tumbling", "hopping"} else end])
    is_open = bool(found) if kind == "session" else (start, end) in found
    return None if is_open is not query_["closed"] else f"open: {is_open}"


def _config(query_: Case) -> str | None:
    check = CONFIGURED.get(query_["spec"])
    if check is None:
        raise Unsupported(f"fact 'config' of {query_['spec']!r}")
    try:
        check(query_)
    except StreamlogError as error:
        return f"refused: {error}" if query_["valid"] else None
    return None if query_["valid"] else "accepted"


def _defined(query_: Case) -> None:
    windows_of(query_ | {"type": query_["spec"]})


def _retained(query_: Case) -> None:
    tumbling(ms(query_["size"]), grace=ms(query_["grace"]), retention=ms(query_["retention"]))


def _stream_table_grace(query_: Case) -> None:
    app = App("grace")
    stream, topic = (app.topic(name, key=str, value=str) for name in ("stream", "table"))
    history = query_.get("history", query_.get("retention"))
    versioned = {} if history is None else {"history": ms(history)}
    table = app.table(topic, name="t", **versioned)
    joined: Any = app.stream(stream).join
    joined(table, lambda a, b: a + b, as_of=True, grace=ms(query_["grace"]), name="j")
    app.topology()


def _join_partitions(query_: Case) -> None:
    counts = query_.get("partitions") or [query_["left"], query_["right"]]
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


def _windowed_key_bytes(query_: Case) -> str | None:
    size_ms = query_["end"] - query_["start"]
    kind = session if query_["type"] == "session" else sliding
    app = App("bytes")
    out = app.topic("out", key=Windowed[str], value=int, windows=kind(ms(size_ms)))
    found = out.spec.key.dumps(
        Windowed(query_["key"], moment(query_["start"]), moment(query_["end"]))
    ).hex()
    return None if found == query_["hex"] else found


def _murmur2(query_: Case) -> str | None:
    key = bytes.fromhex(query_["hex"]) if "hex" in query_ else query_["key"].encode()
    if "partitions" in query_:
        found = partition_of_key(key, query_["partitions"])
        return None if found == query_["partition"] else f"partition {found}"
    names = [name for name in ("murmur2", "hash", "value") if name in query_]
    wanted = query_[names[0] if names else "hash"]
    found = murmur2(key)
    return None if (found - wanted) % 2**32 == 0 else f"hash {found}"


ANSWERS = {
    "windows_for": _windows_for,
    "window_close": _window_close,
    "config": _config,
    "windowed_key_bytes": _windowed_key_bytes,
    "murmur2": _murmur2,
}
