"""Markup against the standard library's own parser of HTML."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.console.markup import VOID, Element, Markup, Node, a, div, field, joined, render
from streamlog.errors import UsageError

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), max_size=20
) | st.sampled_from(["<script>", "</div>", "&amp;", '" onload="x', "'", "<!--", "]]>"])
NAMES = st.sampled_from(["div", "p", "span", "br", "input"])
KEYWORDS = st.sampled_from(["class_", "id", "data_x", "title", "aria_label"])
Tree = tuple[str, dict[str, str], list[object]]
TREES = st.recursive(
    TEXT,
    lambda inner: st.tuples(
        NAMES, st.dictionaries(KEYWORDS, TEXT, max_size=3), st.lists(inner, max_size=4)
    ),
    max_leaves=12,
)


class Reader(HTMLParser):
    """Reads HTML back into trees."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.levels: list[list[object]] = [[]]
        self.open: list[tuple[str, dict[str, str]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if tag in VOID:
            self.levels[-1].append((tag, found, []))
            return
        self.open.append((tag, found))
        self.levels.append([])

    def handle_endtag(self, tag: str) -> None:
        name, found = self.open.pop()
        assert name == tag
        children = self.levels.pop()
        self.levels[-1].append((name, found, children))

    def handle_data(self, data: str) -> None:
        level = self.levels[-1]
        if level and isinstance(level[-1], str):
            level[-1] += data
        else:
            level.append(data)


def built(tree: object) -> Node:
    if isinstance(tree, str):
        return tree
    name, attributes, children = cast("Tree", tree)
    element = Element(name)(**attributes)
    return element if name in VOID else element[map(built, children)]


def expected(trees: list[object]) -> list[object]:
    found: list[object] = []
    for tree in trees:
        if not isinstance(tree, str):
            name, attributes, children = cast("Tree", tree)
            given_names = {key.rstrip("_").replace("_", "-"): v for key, v in attributes.items()}
            found.append((name, given_names, [] if name in VOID else expected(children)))
        elif found and isinstance(found[-1], str):
            found[-1] += tree
        elif tree:
            found.append(tree)
    return found


@given(st.lists(TREES, max_size=4))
def test_what_is_built_is_what_a_parser_reads(trees: list[object]) -> None:
    reader = Reader()
    reader.feed(render([built(each) for each in trees]))
    reader.close()
    assert reader.levels == [expected(trees)]


def test_absent_children_and_attributes_leave_nothing() -> None:
    assert str(div(hidden=True, title=None, lang=False)[None, [], 3]) == "<div hidden>3</div>"
    assert str(field(value=0)) == '<input value="0">'
    assert str(joined("<", Markup("<b>"))) == "&lt;<b>"


@pytest.mark.parametrize("name", ["onclick", "style", "srcdoc", "a b", 'x"', ""])
def test_attributes_that_run_code_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="can't be used"):
        div(**{name: "x"})


@pytest.mark.parametrize(
    "where",
    ["javascript:alert(1)", "//evil.example/", "https://evil.example", "/\\evil", "data:x", " /a"],
)
def test_links_lead_to_this_server_alone(where: str) -> None:
    with pytest.raises(UsageError, match="this server"):
        a(href=where)
    for allowed in ("/console/topics?q=a", "#content", "?page=2", "/"):
        assert f'href="{allowed}"' in str(a(href=allowed)["x"])
