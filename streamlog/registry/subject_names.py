"""Names of subjects, and the contexts that they belong to.

A subject of the default context has a plain name, `orders-value`. One of another context is written
`:.audit:orders-value`. Each context has its own ids. `:.audit:` without a subject stands for the
context itself, for example in its compatibility level; `:*:` for all contexts, in searches.

`resource_of` maps a subject to the topic whose ACLs hold for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DEFAULT_CONTEXT: Final = "."
WILDCARD: Final = ":*:"
NAME_CHARACTERS_MAX: Final = 1_000
"""Longer names of subjects are refused; a topic's name has at most 249 characters."""
_KEY, _VALUE = "-key", "-value"


class QualifiedSubject(NamedTuple):
    """A subject with its context; the subject is empty for the context itself."""

    context: str
    subject: str

    @property
    def name(self) -> str:
        """The name, with the context unless that is the default."""
        return self.subject if self.context == DEFAULT_CONTEXT else f"{self.prefix}{self.subject}"

    @property
    def prefix(self) -> str:
        """What names in the context begin with."""
        return "" if self.context == DEFAULT_CONTEXT else f":{self.context}:"

    @property
    def is_context(self) -> bool:
        """Whether it stands for a context itself."""
        return not self.subject


def qualify(name: str) -> QualifiedSubject:
    """Return the context and the subject of a name."""
    if name.startswith(":."):
        context, colon, subject = name[1:].partition(":")
        if colon:
            return QualifiedSubject(context, subject)
    return QualifiedSubject(DEFAULT_CONTEXT, name)


def context_of(name: str) -> str:
    """Return the context of a name."""
    # Almost every name is one of the default context, and a start asks for each of them.
    return qualify(name).context if name.startswith(":.") else DEFAULT_CONTEXT


def normalize_name(name: str) -> str:
    """Return the one spelling of a subject: `:.:orders` is `orders`."""
    return qualify(name).name if name.startswith(":.") else name


def relative_name(name: str, parent: str) -> str:
    """Return a referenced subject's name, which without a context is in the context of `parent`."""
    if name.startswith(":."):
        return normalize_name(name)
    return QualifiedSubject(qualify(parent).context, name).name


def is_valid_name(name: str) -> bool:
    """Return whether a subject may have this name: no control characters, not too long."""
    return 0 < len(name) <= NAME_CHARACTERS_MAX and name.isprintable() and name != WILDCARD


def resource_of(name: str) -> str:
    """Return the topic whose ACLs hold for a subject.

    `orders-key` and `orders-value` belong to topic `orders`; `orders-com.shop.Order`, a subject by
    topic and record, and `com.shop.Order`, one by record, to the topic of their own name, which
    ACLs with a prefix cover. The context does not count.
    """
    subject = qualify(name).subject
    for ending in (_KEY, _VALUE):
        if subject.endswith(ending) and subject != ending:
            return subject.removesuffix(ending)
    return subject
