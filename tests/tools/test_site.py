"""The site of the documentation: its navigation, its pages, and the check of what was built."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog import errors
from tools.site.__main__ import pages
from tools.site.check import faults
from tools.site.pages import head, indented, relinked
from tools.site.reference import API, error_page

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def named(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Return the pages that a navigation names."""
    for entry in entries:
        for found in entry.values():
            yield from [found] if isinstance(found, str) else named(found)


def test_the_navigation_names_each_page_once() -> None:
    made = dict(pages())
    assert Counter(named(PROJECT["nav"])) == Counter(made.keys())
    for path, text in made.items():
        _, told, _ = text.split("---\n", 2)
        assert 'title: ""' not in told, path
        assert 'description: ""' not in told, path


def test_the_site_loads_no_fonts_from_elsewhere() -> None:
    assert PROJECT["theme"]["font"] is False


def test_the_reference_has_each_public_name_once() -> None:
    listed = [each for _, objects in API.values() for each in objects]
    exported = [each for each in listed if each.count(".") == 1 and each.startswith("streamlog.")]
    assert sorted(exported) == sorted(f"streamlog.{name}" for name in streamlog.__all__)
    assert len(listed) == len({*listed})


def test_the_errors_of_the_reference_are_those_of_the_package() -> None:
    def below(kind: type) -> Iterator[str]:
        yield kind.__name__
        for each in kind.__subclasses__():
            yield from below(each)

    public = [name for name in below(errors.StreamlogError) if hasattr(errors, name)]
    assert [name for name in public if f"| `{name}` |" not in error_page()] == []


def test_a_page_has_its_heading_and_first_sentences_as_head() -> None:
    text = "# `Emit` and *more*\n\n```\ncode\n```\n\nOne [link](a.md). " + "Words " * 40
    assert head(text).splitlines()[1:3] == [
        'title: "Emit and more"',
        'description: "One link."',
    ]


@pytest.mark.parametrize(
    ("path", "text", "led"),
    [
        ("docs/a.md", "[x](b.md#c)", "[x](b.md#c)"),
        ("docs/a.md", "[x](../CONTRIBUTING.md#c)", "[x](contributing.md#c)"),
        ("docs/a.md", "[`x`](../streamlog/app.py), y", "`x`, y"),
        ("docs/decisions/1.md", "[x](../b.md)", "[x](../b.md)"),
        ("README.md", "![x](docs/images/b.png)", "![x](images/b.png)"),
        ("docs/a.md", "[b.md](b.md)", "[The title](b.md)"),
        ("docs/a.md", "[x](https://a.org/b.md)", "[x](https://a.org/b.md)"),
        ("docs/a.md", "```\n[x](../c.py)\n```\n", "```\n[x](../c.py)\n```\n"),
    ],
)
def test_links_lead_to_pages_of_the_site(path: str, text: str, led: str) -> None:
    assert relinked(path, text, {"b.md": "The title"}) == led


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a\n  - b\n    - c\n- d\n", "- a\n    - b\n        - c\n- d\n"),
        ("1. a\n\n   b\n\nc\n", "1. a\n\n    b\n\nc\n"),
        ("1. a\n\n   ```\n   x\n     y\n   ```\n", "1. a\n\n    ```\n    x\n      y\n    ```\n"),
        ("```\n- a\n  - b\n```\n", "```\n- a\n  - b\n```\n"),
        ("a\n    code\n", "a\n    code\n"),
    ],
)
def test_what_belongs_to_an_item_is_indented_by_four(text: str, expected: str) -> None:
    assert indented(text) == expected


GOOD = '<meta name="description" content="d"><link rel="canonical" href="https://a.org/">'


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (f'{GOOD}<a href="b.html#here">b</a>', None),
        ("", "a.html: no description"),
        (f'{GOOD}<a href="c.html">c</a>', "a.html: c.html has no target"),
        (f'{GOOD}<a href="b.html#x">b</a>', "a.html: b.html#x has no such place"),
        (f'{GOOD}<a href="#x">b</a>', "a.html: #x has no such place"),
        (
            f'{GOOD}<script src="https://cdn.org/a.js"></script>',
            "a.html: loads https://cdn.org/a.js from elsewhere",
        ),
        (
            f'{GOOD}<link rel="stylesheet" href="//f.org/a.css">',
            "a.html: loads //f.org/a.css from elsewhere",
        ),
    ],
)
def test_faults_of_a_built_site_are_found(body: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text(f'{GOOD}<h1 id="here">b</h1>')
    assert [*faults(tmp_path)] == ([fault] if fault else [])
