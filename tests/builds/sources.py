"""The hot modules twice: compiled, and interpreted from their sources."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from streamlog.metrics.build_info import HOT_MODULES

ROOT = Path(__file__).parent.parent.parent
COMPILED = {name: importlib.import_module(name) for name in HOT_MODULES}
MISSING = [
    name
    for name, module in COMPILED.items()
    if not str(module.__file__).endswith(tuple(EXTENSION_SUFFIXES))
]
REASON = f"not compiled: {', '.join(MISSING)} (`make compile` does it)"
Act = Callable[[ModuleType], Any]


def interpreted(name: str) -> ModuleType:
    path = ROOT / f"{name.replace('.', '/')}.py"
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def interpreted_all() -> dict[str, ModuleType]:
    """Load the hot modules from source; imports among them get the sources, too."""
    found: dict[str, ModuleType] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in HOT_MODULES:
            found[name] = interpreted(name)
            patch.setitem(sys.modules, name, found[name])
    return found


SOURCES = interpreted_all()


def both(name: str) -> tuple[ModuleType, ModuleType]:
    return SOURCES[name], COMPILED[name]


def outcome(act: Act, module: ModuleType) -> object:
    try:
        return act(module)
    except Exception as error:  # noqa: BLE001 - whatever one build raises, the other has to
        return type(error), str(error)


def same(builds: tuple[ModuleType, ModuleType], act: Act) -> object:
    source, extension = (outcome(act, module) for module in builds)
    assert source == extension
    return source
