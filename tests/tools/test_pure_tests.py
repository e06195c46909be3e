"""The tests of `make quick`: they import pure modules and nothing else of the project."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.modules import pure_modules, read_modules
from tools.pure_tests import ROOT, pure_tests

FILES = {
    "test_pure.py": "from streamlog.record import Record",
    "test_impure.py": "from streamlog.log import Log",
    "test_neither.py": "import os",
    "cases.py": "from streamlog.log import Log",
    "test_helped.py": "from streamlog.record import Record\nfrom tests.cases import log",
}
SETTINGS = """
[[tool.importlinter.contracts]]
source_modules = ["shop.sale", "shop.log.*.wire", "shop.windows"]
forbidden_modules = ["asyncio", "threading", "socket", "os", "time", "random"]
[[tool.importlinter.contracts]]
source_modules = ["shop.testing"]
forbidden_modules = ["os"]
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    for name, text in FILES.items():
        (tmp_path / "tests" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    return tmp_path


def test_a_test_that_imports_an_impure_module_indirectly_is_excluded(tree: Path) -> None:
    found = pure_tests(read_modules(tree, ["tests"]), ["streamlog.record"])
    assert [module.path.name for module in found] == ["test_pure.py"]


def test_a_contract_covers_everything_below_its_modules(tree: Path) -> None:
    covered = {"shop.sale", "shop.windows.emit", "shop.log.raft.wire"}
    others = {"shop.sales", "shop.testing", "shop.log.wire", "shop.log.a.b.wire"}
    assert pure_modules(tree, covered | others) == covered


def test_the_project_has_pure_modules_and_tests_for_them() -> None:
    pure = pure_modules(ROOT, read_modules(ROOT))
    folders = {each.path.parent for each in pure_tests(read_modules(ROOT, ["tests"]), pure)}
    assert len(pure) > 100
    assert len(folders) > 8
