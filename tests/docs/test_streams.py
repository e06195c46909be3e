"""The program of docs/streams.md type-checks (in `tests/typed`) and behaves as described."""

from __future__ import annotations

import importlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from streamlog import agg

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/streams.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "documented_calls.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("documented_calls")
    start = datetime(2025, 1, 1, tzinfo=UTC)
    with module.app.test() as t:
        for number, (path, user, ms) in enumerate(
            [("/a", "x", 5), ("/a", "y", 9), ("/static/b", "x", 1), ("/a", "x", -1), ("/a", "x", 7)]
        ):
            call = module.Call(str(number), path, user, ms, start + timedelta(seconds=number))
            for _ in range(2):
                t.input(module.calls).send(call, key=user)
        later = module.Call("9", "/a", "z", 1, start + timedelta(minutes=2))
        t.input(module.calls).send(later, key="z")
        (load,) = t.output(module.loads).values
        (refused,) = t.output(module.failed).records
    assert (refused.value.id, refused.headers) == ("3", (("path", b"/a"),))
    assert (load.calls, load.users, load.mean, load.slowest) == (3, 2, 7.0, ["1", "4", "0"])
    assert load.p99 == pytest.approx(7, rel=0.01)


def test_the_program_type_checks() -> None:
    assert PROGRAM in (ROOT / "tests/typed/accepted/calls.py").read_text()


def test_every_column_is_documented() -> None:
    documented = {name for row in TEXT.splitlines() for name in re.findall(r"`(\w+)\(", row)}
    assert {name for name in vars(agg) if not name.startswith("_")} <= documented
