"""The modules of the tree, their imports, and which of them are pure.

Everything is derived from the files and from the import contracts in `pyproject.toml`, so no list
of names has to follow when a module moves.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("streamlog", "spark_bridge")
IMPURE = {"asyncio", "threading", "socket", "os", "time", "random"}


@dataclass(frozen=True)
class Module:
    """A source file of the tree."""

    name: str
    path: Path

    @cached_property
    def text(self) -> str:
        """Return the source."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed source."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the parsed source."""
        return list(ast.walk(self.tree))

    @property
    def is_package(self) -> bool:
        """Whether the file is an `__init__.py`."""
        return self.path.stem == "__init__"

    @property
    def is_hot(self) -> bool:
        """Whether the module is compiled: a `.pxd` has its name."""
        return self.path.with_suffix(".pxd").exists()


def module_name(path: Path, root: Path) -> str:
    """Return the dotted name of a file below `root`."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def read_modules(root: Path, tops: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Return the modules of the packages `tops` by name."""
    paths = [path for top in tops for path in sorted((root / top).rglob("*.py"))]
    names = [module_name(path, root) for path in paths]
    return {name: Module(name, path) for name, path in zip(names, paths, strict=True)}


def imports_of(module: Module, names: Iterable[str]) -> Iterator[str]:
    """Yield the modules among `names` that a module imports; `from a import b` may mean `a.b`."""
    known = names if isinstance(names, set | dict) else set(names)
    for node in module.nodes:
        match node:
            case ast.ImportFrom(module=str(source), names=aliases):
                inner = [f"{source}.{alias.name}" for alias in aliases]
                yield from (name if name in known else source for name in inner)
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)


def pure_modules(root: Path, names: Iterable[str]) -> set[str]:
    """Return the modules whose contract forbids I/O, clocks, and chance."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    patterns = [
        _pattern(source)
        for contract in settings["tool"]["importlinter"]["contracts"]
        if set(contract.get("forbidden_modules", ())) >= IMPURE
        and not contract.get("allow_indirect_imports", False)
        for source in contract["source_modules"]
    ]
    return {name for name in names if any(each.fullmatch(name) for each in patterns)}


def _pattern(source: str) -> re.Pattern[str]:
    """Return what a source of a contract covers: `*` is one part, `**` some, and all below it."""
    exact = re.escape(source).replace(r"\*\*", r"[\w.]+").replace(r"\*", r"\w+")
    return re.compile(rf"{exact}(\..*)?")
