"""The figures of a small tree, compared with a count by hand."""

from __future__ import annotations

import pytest

from tools import shape

FILES = {
    "streamlog/__init__.py": '"""The package."""\n',
    "streamlog/a.py": '''"""A module."""

from typing import Any

from streamlog import b
from streamlog.room import inner


class Twice:
    """A class."""

    first: Any = b.value  # a comment
    second: Any = inner.value  # noqa: ERA001
''',
    "streamlog/b.py": "from streamlog.a import Twice\n\nvalue = Twice\n",
    "streamlog/room/__init__.py": "",
    "streamlog/room/inner.py": "class Twice:\n    pass\n\n\nvalue = 1\n",
    "streamlog/room/b.py": "class _Hidden:\n    pass\n",
}
SETTINGS = """
[[tool.importlinter.contracts]]
containers = ["streamlog.broker"]
layers = ["server", "storage"]
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> shape.Tree:
    root = tmp_path_factory.mktemp("tree")
    for path, text in FILES.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "pyproject.toml").write_text(SETTINGS)
    return shape.Tree(root)


def test_lines_are_counted_by_kind(tree: shape.Tree) -> None:
    lines = tree.lines["streamlog.a"]
    assert sorted(lines.numbers) == [3, 5, 6, 9, 12, 13]
    assert (lines.code, lines.body, lines.comments) == (6, 3, 1)
    assert tree.code == 6 + 2 + 3 + 2


def test_repeated_class_and_module_names_are_listed(tree: shape.Tree) -> None:
    assert shape.classes_twice(tree) == ["Twice: streamlog.a, streamlog.room.inner"]
    assert shape.basenames_twice(tree) == ["b: streamlog.b, streamlog.room.b"]


def test_small_modules_with_one_importer_are_listed(tree: shape.Tree) -> None:
    assert shape.small_modules(tree) == [
        "streamlog.a (3) -> streamlog.b",
        "streamlog.b (1) -> streamlog.a",
        "streamlog.room.inner (3) -> streamlog.a",
    ]


def test_import_cycles_between_siblings_are_found(tree: shape.Tree) -> None:
    assert shape.circles(tree) == ["streamlog: a, b"]
    assert shape.find_circles({"a": "b", "b": "ca", "c": "d", "d": ""}) == [["a", "b"]]


def test_broker_layers_and_large_folders_are_listed(tree: shape.Tree) -> None:
    assert shape.broker_floors(tree) == ["server", "storage"]
    assert shape.large_folders(tree) == []


def test_comment_and_any_rates_are_computed(tree: shape.Tree) -> None:
    assert shape.comment_rate(tree) == pytest.approx(100 / 13)
    assert shape.any_rate(tree) == pytest.approx(2 * 250 / 13)


def test_every_figure_has_a_bar_within_its_goal() -> None:
    assert shape.BARS.keys() == shape.FIGURES.keys()
    for name, figure in shape.FIGURES.items():
        assert figure.reaches(figure.goal, shape.BARS[name]), (
            f"{name}: the bar is stricter than the goal"
        )
