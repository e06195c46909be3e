"""The fold under windows, interpreted and compiled: equal records, rows and stops."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

ROOT = Path(__file__).parent.parent.parent
HOT = ("streamlog.tables.folds.folding", "streamlog.processing.windows.window_fold")
COMPILED = [importlib.import_module(name) for name in HOT]
missing = [
    module.__name__
    for module in COMPILED
    if not str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES))
]
pytestmark = pytest.mark.skipif(
    bool(missing), reason=f"not compiled: {', '.join(missing)} (`make compile` does it)"
)


def interpreted_all() -> list[ModuleType]:
    """Load the modules from source; the second imports the first one's source."""
    found: list[ModuleType] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in HOT:
            path = ROOT / f"{name.replace('.', '/')}.py"
            spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
            assert spec is not None
            assert spec.loader is not None
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            patch.setitem(sys.modules, name, module)
            found.append(module)
    return found


INTERPRETED = interpreted_all()
Builds = tuple[ModuleType, ModuleType]

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.integers(-3, 3)
times = st.integers(0, 60) | st.sampled_from([-1, 2**50, 2**50 + 1, 2**62, 2**63 - 1])
records = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c"]), numbers, times, times, st.sampled_from("xyz")),
    min_size=1,
    max_size=12,
)


def outcome(act: Callable[[Builds], Any], builds: list[ModuleType]) -> object:
    try:
        return act((builds[0], builds[1]))
    except Exception as error:  # noqa: BLE001 - whatever one build raises, the other has to
        return type(error), str(error)


def same(act: Callable[[Builds], Any]) -> object:
    found = outcome(act, INTERPRETED)
    assert found == outcome(act, COMPILED)
    return found


def columns(module: ModuleType) -> Any:
    some_columns = [
        module.Column("count", None),
        module.Column("sum", "n"),
        module.Column("min", "n"),
        module.Column("max", lambda value: value.n),
        module.Column("mean", "n"),
    ]
    return module.Columns(some_columns, lambda *results: results, None)


@given(st.lists(numbers | st.just("text"), max_size=6))
def test_columns_fold_equally_in_both_builds(values: list[Any]) -> None:
    def act(builds: Builds) -> object:
        folded = columns(builds[0])
        state = folded.initial()
        for n in values:
            state = folded.add(state, SimpleNamespace(n=n))
        return state, folded.result(state) if values else None

    same(act)


def test_a_row_with_named_columns_is_equal_in_both_builds() -> None:
    def act(builds: Builds) -> object:
        count = builds[0].Column("count", None)
        return builds[0].Columns([count], dict, ["n"]).result([3])

    assert same(act) == {"n": 3}


def run_fold(
    builds: Builds,
    batch: list[Any],
    *,
    built_in: bool,
    on_update: bool,
    gate: int,
    step: int = 0,
    atomic: bool = False,
    spans: bool = False,
) -> object:
    """Run to the end despite all stops, and return everything that is visible from outside."""
    folding, fold_module = builds
    some_columns = columns(folding)

    def open_window(start_ms: int, end_ms: int) -> Any:
        window = fold_module.Window(start_ms, end_ms, is_whole=end_ms % 3 != 0)
        fold.windows[end_ms] = window
        return window

    def load_row(window: Any, raw: bytes) -> Any:
        row = window.rows[raw] = folding.Row(some_columns.initial() if built_in else 100, 7)
        return row

    fold = fold_module.WindowFold(
        some_columns.add if built_in else lambda state, value: state + value.n,
        some_columns.result if built_in else lambda state: state,
        some_columns.initial if built_in else int,
        open_window=open_window,
        load_row=load_row,
        size_ms=10,
        offset_ms=0 if step else 3,
        step_ms=step,
        span_of=(lambda at: (at // 7 * 7, at // 7 * 7 + 7)) if spans else None,
        is_atomic=atomic,
        grace_ms=2,
        on_update=on_update,
        on_commit=not on_update,
    )
    fold.gate_ms = gate
    raws, found, stamps, own, sources = map(list, zip(*batch, strict=True))
    values = [SimpleNamespace(n=n) for n in found]
    arrived = fold_module.Arrived(raws, values, stamps, own, sources)
    results = fold_module.ResultColumns()
    stops = []
    start = 0
    run = fold.run_overlapping if step else fold.run
    while start < len(raws):
        why = run(start, arrived, (5, 1, 40), results)
        stops.append((why, fold.at))
        start = fold.at if why == fold_module.SOURCE else fold.at + 1
        if step and why == fold_module.LATE:
            start = fold.dropped_at = fold.at
    rows = {
        (end_ms, raw): (row.state, row.timestamp_ms, row.dirty)
        for end_ms, window in fold.windows.items()
        for raw, row in window.rows.items()
    }
    dirty = {
        end_ms: window.dirty and [row.raw for row in window.dirty]
        for end_ms, window in fold.windows.items()
    }
    waiting = [
        (window.end_ms, row.raw, row.state, row.number, row.time_ms)
        for row, window in zip(fold.touched, fold.touched_windows, strict=True)
    ]
    spans = [(window.start_ms, window.end_ms, window.suffix) for window in results.windows]
    columns_found = (results.ats, results.raws, results.values, results.timestamps)
    return stops, rows, dirty, waiting, fold.number, columns_found, spans


@given(st.lists(st.tuples(st.integers(0, 2**40), numbers), max_size=5))
def test_rows_are_serialized_equally_in_both_builds(states: list[tuple[int, Any]]) -> None:
    def act(builds: Builds) -> object:
        rows = [builds[0].Row(state, timestamp_ms) for timestamp_ms, state in states]
        return builds[0].written(rows, lambda state: b"%r" % (state,))

    found = same(act)
    assert found == [at.to_bytes(8, "big") + b"%r" % (state,) for at, state in states]


short_lists = st.lists(st.integers(-(2**63), 2**64 - 1) | st.none() | st.booleans(), max_size=17)
stored = short_lists.map(msgspec.msgpack.encode) | st.binary(max_size=12)


@given(st.lists(st.none() | st.tuples(st.binary(min_size=8, max_size=8), stored), max_size=5))
@example([(bytes(8), b"\x91\xcf" + b"\xff" * 8)])
@example([(b"\xff" * 8, b"\x92\xd3\x80" + bytes(7) + b"\xe0")])
def test_rows_are_read_equally_in_both_builds(found: list[tuple[bytes, bytes] | None]) -> None:
    def act(builds: Builds) -> object:
        rows: dict[bytes, Any] = {}
        absent = builds[0].take_up(
            [b"%d" % at for at in range(len(found))],
            [None if each is None else b"".join(each) for each in found],
            0,
            rows,
            lambda data, raw: builds[0].Row(data, -2, raw),
            are_numbers=True,
        )
        return absent, [(row.raw, repr(row.state), row.timestamp_ms) for row in rows.values()]

    same(act)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), times), max_size=8))
def test_missing_rows_are_named_equally_in_both_builds(arrived: list[tuple[bytes, int]]) -> None:
    raws, timestamps = [raw for raw, _ in arrived], [at for _, at in arrived]

    def act(builds: Builds) -> object:
        window = builds[1].Window(10, 40, is_whole=False)
        window.rows[b"b"] = builds[0].Row(None, 0, b"b")
        missing = builds[1].missing_rows(window, raws, timestamps)
        return missing, builds[1].keys_below(b"h", missing)

    wanted = {raw: None for raw, at in arrived if 10 <= at < 40 and raw != b"b"}
    assert same(act) == ([*wanted], [b"h" + raw for raw in wanted])


@given(st.lists(st.tuples(st.integers(0, 2**40), numbers, st.booleans()), max_size=5))
def test_dirty_rows_are_serialized_equally_in_both_builds(
    states: list[tuple[int, Any, bool]],
) -> None:
    def act(builds: Builds) -> object:
        rows: dict[bytes, Any] = {}
        for at, (timestamp_ms, state, is_dirty) in enumerate(states):
            row = rows[b"%d" % at] = builds[0].Row(state, timestamp_ms, b"%d" % at)
            row.dirty = is_dirty
        keys: list[bytes] = []
        values: list[bytes | None] = []
        builds[0].write_down_dirty(rows, b"h", lambda state: b"%r" % (state,), keys, values)
        return keys, values, [row.dirty for row in rows.values()]

    same(act)


@given(records, st.booleans(), st.booleans(), st.integers(0, 60))
@example([(b"a", 1, 2**63 - 1, 2**63 - 1, "x")], True, True, 0)
@example([(b"a", 1, -1, 0, "x")], True, True, 0)
def test_records_fall_into_equal_windows_in_both_builds(
    batch: list[Any], built_in: bool, on_update: bool, gate: int
) -> None:
    same(lambda builds: run_fold(builds, batch, built_in=built_in, on_update=on_update, gate=gate))


@given(records, st.booleans(), st.booleans(), st.integers(0, 60), st.integers(1, 10))
@example([(b"a", 1, 2**63 - 1, 2**63 - 1, "x")], True, True, 0, 3)
@example([(b"a", 1, -1, 0, "x")], True, True, 0, 3)
def test_records_fall_into_equal_hopping_windows_in_both_builds(
    batch: list[Any], built_in: bool, on_update: bool, gate: int, step: int
) -> None:
    def act(builds: Builds) -> object:
        atomic = not built_in and on_update
        return run_fold(
            builds,
            batch,
            built_in=built_in,
            on_update=on_update,
            gate=gate,
            step=step,
            atomic=atomic,
        )

    same(act)


@given(records, st.booleans())
def test_records_fall_into_equal_calendar_windows_in_both_builds(
    batch: list[Any], on_update: bool
) -> None:
    same(
        lambda builds: run_fold(
            builds, batch, built_in=True, on_update=on_update, gate=9, spans=True
        )
    )


@pytest.mark.parametrize("builds", [INTERPRETED, COMPILED], ids=["interpreted", "compiled"])
def test_columns_survive_the_way_to_spark(
    builds: list[ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of Spark's is pickled; a class of C is only if it is compiled to be."""
    monkeypatch.setitem(sys.modules, HOT[0], builds[0])
    column = builds[0].Column("sum", "n")
    folded = builds[0].Columns([column], dict, ["total"])
    returned = pickle.loads(pickle.dumps(folded))  # noqa: S301 - our own bytes
    assert returned.result(returned.add([3], SimpleNamespace(n=4))) == {"total": 7}
