"""Markup: HTML that is built from values, and escaped because it is built.

An element is called with its attributes, and indexed with its children:

    a(href="/console/topics", class_="quiet")["Topics", span["12"]]

Rules of the module: a text is always escaped; what is a `Markup` came out of this module. Scripts
and styles in attributes are refused, since the pages' Content-Security-Policy forbids them, and an
address must stay on this server: a name of a topic never becomes a link to elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Final, TypeAlias, final

from streamlog.errors import UsageError

Value: TypeAlias = "str | int | float | bool | None"
"""The value of an attribute; True stands for an attribute without one, None and False for none."""
Node: TypeAlias = "str | int | float | Markup | Element | Iterable[Node] | None"
"""A child of an element; None is no child."""
VOID: Final = frozenset({"br", "hr", "img", "input", "link", "meta"})
"""Elements that have no children, and no end."""
ADDRESSES: Final = frozenset({"href", "src", "action", "formaction"})
_NAME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*")
_LOCAL: Final = re.compile(r"(/(?![/\\])|\?|#)[^\s\\]*|")
"""An address on this server: a browser takes `//host` and `/\\host` for another one."""


@final
class Markup:
    """HTML that is safe to send."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        """For this module; others build elements."""
        self.text = text

    def __str__(self) -> str:
        return self.text


@final
class Element:
    """An element, with its attributes and without children yet."""

    __slots__ = ("_head", "_name")

    def __init__(self, name: str, head: str = "") -> None:
        """`head` is the text of its attributes, escaped."""
        self._name, self._head = name, head

    def __call__(self, **attributes: Value) -> Element:
        """Return the element with these attributes; `class_` is class, `data_id` is data-id."""
        return Element(
            self._name, self._head + "".join(map(_attribute, attributes, attributes.values()))
        )

    def __getitem__(self, children: Node) -> Markup:
        """Return the element with these children."""
        return Markup(f"<{self._name}{self._head}>{render(children)}</{self._name}>")

    def __str__(self) -> str:
        # A browser takes the end of a void element for a second one.
        end = "" if self._name in VOID else f"</{self._name}>"
        return f"<{self._name}{self._head}>{end}"


def render(node: Node) -> str:
    """Return a node as HTML."""
    match node:
        case str():
            return escape(node)
        # Only this module makes them, so they are escaped already.
        case Markup() | Element():
            return str(node)
        case None:
            return ""
        case int() | float():
            return escape(str(node))
        case _:
            return "".join(map(render, node))


def joined(*nodes: Node) -> Markup:
    """Return nodes one after another."""
    return Markup(render(nodes))


def document(*nodes: Node) -> str:
    """Return a whole document."""
    return f"<!doctype html>\n{render(nodes)}\n"


def _attribute(keyword: str, value: Value) -> str:
    # Python's words get an underscore at their end; viewBox and the like keep their letters.
    name = keyword.rstrip("_").replace("_", "-")
    # A handler or a style in an attribute would need an exception from the policy, which would
    # then hold for what an attacker writes as well.
    if _NAME.fullmatch(name) is None or name.startswith("on") or name in {"style", "srcdoc"}:
        raise UsageError(f"the attribute {name!r} can't be used in pages of the console")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    if name in ADDRESSES and _LOCAL.fullmatch(str(value)) is None:
        raise UsageError(
            f"{name}={str(value)[:80]!r}: pages of the console link to this server alone"
        )
    # With quotes: without them, a space in a value begins the next attribute.
    return f' {name}="{escape(str(value))}"'


a, abbr, b, body, br, button, caption, code, dd, details, div, dl, dt, em = map(
    Element,
    ["a", "abbr", "b", "body", "br", "button", "caption", "code", "dd", "details", "div",
     "dl", "dt", "em"],
)  # fmt: skip
figcaption, figure, footer, form, h1, h2, h3, head, header, hr, html, img, label, legend = map(
    Element,
    ["figcaption", "figure", "footer", "form", "h1", "h2", "h3", "head", "header", "hr", "html",
     "img", "label", "legend"],
)  # fmt: skip
fieldset, li, link, main, meta, nav, ol, option, p, pre, script, section, select, small = map(
    Element,
    ["fieldset", "li", "link", "main", "meta", "nav", "ol", "option", "p", "pre", "script",
     "section", "select", "small"],
)  # fmt: skip
span, strong, summary, svg, table, tbody, td, text_, tfoot, th, thead, time_, title, tr, ul = map(
    Element,
    ["span", "strong", "summary", "svg", "table", "tbody", "td", "text", "tfoot", "th", "thead",
     "time", "title", "tr", "ul"],
)  # fmt: skip
circle, g, line, path, polyline, rect = map(
    Element, ["circle", "g", "line", "path", "polyline", "rect"]
)
field, textarea = Element("input"), Element("textarea")
