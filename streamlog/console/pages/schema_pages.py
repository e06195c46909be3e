"""The schemas of a registry: subjects, their versions, what changed between two, and a check.

Schemas are deleted on the command line alone: records need them for as long as they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    code,
    div,
    field,
    form,
    h1,
    h2,
    joined,
    label,
    li,
    p,
    pre,
    span,
    strong,
    textarea,
    ul,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    Listing,
    address,
    badge,
    choice,
    heading_row,
    nothing,
    notice,
    number,
    rows_of,
    tile,
    tiles,
)

CHECKED_MAX: Final = 12_000
"""Characters of a schema that an address can carry."""
SENTENCES_MAX: Final = 100


class SubjectRow(msgspec.Struct, frozen=True):
    """A subject with its latest version."""

    name: str
    kind: str
    """Its format: AVRO, JSON or PROTOBUF."""
    version: int
    id: int


class SchemaLook(msgspec.Struct, frozen=True):
    """A registered schema."""

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...]
    """Names that it uses, each with the subject and the version that define it."""


class SchemaChanges(msgspec.Struct, frozen=True):
    """What has changed between two schemas."""

    sentences: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    """Changed lines, as `diff -u` marks them."""


class SubjectLook(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a subject, compared with another one."""

    name: str
    versions: tuple[int, ...]
    version: int
    against: int | None
    """None: there is no other version."""
    level: str
    """The compatibility level that holds for it."""
    is_own_level: bool
    schema: SchemaLook
    changes: SchemaChanges
    """What has changed since the other version."""


class Checked(msgspec.Struct, frozen=True):
    """Whether a schema may be the next version."""

    is_compatible: bool
    messages: tuple[str, ...]
    """Why not."""


def no_registry() -> View:
    """Return the page where no registry is known."""
    content = joined(
        heading_row(h1["Schemas"]),
        nothing(
            "No schema registry is known.",
            "Serve one: streamlog broker --registry 127.0.0.1:8081. Or name one in"
            " web.schema.registry.",
        ),
    )
    return View(title="Schemas", content=content)


def subjects(found: Sequence[SubjectRow], query: Mapping[str, str]) -> View:
    """Return the list of subjects."""
    # Searched here: the registry finds subjects by the beginning of their names alone.
    listing: Listing[SubjectRow] = Listing(
        noun="subjects",
        path=("schemas",),
        columns=[
            Heading("Subject"), Heading("Format"), Heading("Latest version", is_number=True),
            Heading("Schema id", is_number=True),
        ],
        row=lambda each: (
            a(class_="name", href=address("schemas", each.name))[each.name],
            each.kind.capitalize() if each.kind != "JSON" else "JSON Schema",
            number(each.version),
            a(href=address("schemas", id=each.id))[each.id],
        ),
        text=lambda each: each.name,
        empty=(
            "There is no schema yet.", "Register one: streamlog schemas register SUBJECT FILE"
        ),
    )  # fmt: skip
    content = joined(heading_row(h1["Schemas"]), listing.shown(found, query))
    return View(title="Schemas", content=content, is_live=False)


def schema_by_id(look: SchemaLook) -> View:
    """Return the page of one schema."""
    title = f"Schema {look.id}"
    content = joined(
        _crumb(), heading_row(h1[title], badge(look.kind, "calm")), _references(look), _text(look)
    )
    return View(title=title, content=content, is_live=False)


def no_subject(name: str, why: str) -> View:
    """Return the page of a subject that does not exist."""
    content = joined(_crumb(), heading_row(h1[name]), nothing("There is no such subject.", why))
    return View(title=name, content=content, is_live=False, status=404)


def subject(look: SubjectLook, query: Mapping[str, str], checked: Checked | str | None) -> View:
    """Return the page of a subject; `checked` is the outcome of a check, or why there is none."""
    content = joined(
        _crumb(),
        heading_row(h1[look.name]),
        tiles(
            tile("Format", look.schema.kind),
            tile("Version", number(look.version), f"of {len(look.versions)}"),
            tile("Schema id", str(look.schema.id)),
            tile("Compatibility", look.level.capitalize().replace("_", " "),
                 "its own" if look.is_own_level else "of all subjects"),
        ),
        _versions(look),
        _changes(look),
        _references(look.schema),
        h2[f"Version {look.version}"],
        _text(look.schema),
        _check(look, query, checked),
    )  # fmt: skip
    return View(title=look.name, content=content, is_live=False)


def _crumb() -> Markup:
    return div(class_="crumb")[a(href=address("schemas"))["Schemas"]]


def _versions(look: SubjectLook) -> Node:
    if len(look.versions) < 2:  # noqa: PLR2004 - two to compare
        return None
    # The newest first: it is the one that is asked about most.
    options = {str(each): f"Version {each}" for each in reversed(look.versions)}
    return form(class_="fields", method="get", action=address("schemas", look.name),
                aria_label="Which versions")[
        choice("version", "Show", options, str(look.version)),
        choice("against", "Compare with", options, str(look.against)),
        button(type="submit", class_="main")["Compare"],
    ]  # fmt: skip


def _changes(look: SubjectLook) -> Node:
    if look.against is None:
        return None
    title = h2[f"Changes since version {look.against}"]
    if not look.changes.lines and not look.changes.sentences:
        return joined(title, p(class_="hint")["The two are equal, but for spaces."])
    # Two schemas that have nothing in common differ in each field.
    left_out = len(look.changes.sentences) - SENTENCES_MAX
    return joined(
        title,
        ul[(li[_marked(each)] for each in look.changes.sentences[:SENTENCES_MAX])]
        if look.changes.sentences
        else None,
        p(class_="hint")[f"and {left_out} more"] if left_out > 0 else None,
        pre(class_="code diff", tabindex=0, aria_label="Changed lines")[
            map(_line, look.changes.lines)
        ],
    )


def _marked(sentence: str) -> list[Node]:
    # Names of fields stand in backquotes, as in Markdown.
    return [code[part] if at % 2 else part for at, part in enumerate(sentence.split("`"))]


def _line(line: str) -> Markup:
    kinds = {"+": "added", "-": "removed", "@": "hint"}
    return span(class_=kinds.get(line[:1]))[f"{line}\n"]


def _references(look: SchemaLook) -> Node:
    if not look.references:
        return None
    columns = [Heading("Name"), Heading("Subject"), Heading("Version", is_number=True)]
    rows = [
        (code[name], a(href=address("schemas", used, version=version))[used], number(version))
        for name, used, version in look.references
    ]
    return joined(h2["References"], rows_of(columns, rows[:500], name="References"))


def _text(look: SchemaLook) -> Markup:
    return pre(class_="code", tabindex=0, aria_label="The schema")[look.text]


def _check(look: SubjectLook, query: Mapping[str, str], checked: Checked | str | None) -> Markup:
    outcome: Node = None
    if isinstance(checked, str):
        outcome = notice("bad", checked)
    elif checked is not None and checked.is_compatible:
        outcome = notice("good", strong["Compatible. "], "This schema may be the next version.")
    elif checked is not None:
        why = ul[(li[each] for each in checked.messages[:SENTENCES_MAX])]
        outcome = notice("bad", strong["Not compatible. "], why)
    return joined(
        h2(id="check")["Check a schema"],
        p(class_="hint")[
            "The registry compares it with the versions of this subject, as its level asks."
            " Nothing is registered."
        ],
        outcome,
        form(class_="fields", method="get", action=f"{address('schemas', look.name)}#check",
             aria_label="A schema to check")[
            field(type="hidden", name="version", value=look.version),
            label(class_="whole")[
                span["Schema"],
                textarea(name="schema", rows=8, maxlength=CHECKED_MAX, class_="mono",
                         spellcheck="false", required=True)[f"\n{query.get('schema', '')}"],
            ],
            button(type="submit")["Check"],
        ],
    )  # fmt: skip
