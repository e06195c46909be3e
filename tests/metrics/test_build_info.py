"""The modules without compilation, as a broker reports them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from streamlog.metrics import build_info


def module(path: str) -> ModuleType:
    made = ModuleType("made")
    made.__file__ = path
    return made


def test_modules_with_python_source_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("made.compiled", "made.interpreted", "made.not_imported")
    monkeypatch.setattr(build_info, "HOT_MODULES", names)
    monkeypatch.setitem(sys.modules, "made.compiled", module("/lib/made/compiled.so"))
    monkeypatch.setitem(sys.modules, "made.interpreted", module("/lib/made/interpreted.py"))
    assert build_info.interpreted_modules() == ["made.interpreted"]
