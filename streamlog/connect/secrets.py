"""Secret: text that is never shown, or a reference to where it is kept.

`Secret("${env:PASSWORD}")` holds a reference (KIP-297). Only the process that runs a task replaces
it, by `resolve_secrets`, so topics, REST answers and logs have the reference at most.

Rule: no `repr`, `str` or error of this module has the text of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from streamlog.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

HIDDEN = "***"
"""What stands for a secret wherever it would be shown."""
_REFERENCE = re.compile(r"\$\{(?:env|file|dir):[^}]+\}")


class Secret:
    """Text that is shown as "***" in `repr`, logs, REST answers and topics.

    Args:
        text: the secret, or one with references: "${env:NAME}", "${file:/path:key}",
            "${dir:/path:key}".
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def is_reference(self) -> bool:
        """Whether the text has a reference that is not resolved yet."""
        return _REFERENCE.search(self._text) is not None

    @property
    def shown(self) -> str:
        """The text if all of it is one reference, which is no secret; "***" otherwise."""
        return self._text if _REFERENCE.fullmatch(self._text) else HIDDEN

    def reveal(self) -> str:
        """Return the text.

        Raises:
            ConfigError: it is a reference that no process has resolved.
        """
        # A password that reads "${env:X}" would be sent to the other side, and be logged there.
        if self.is_reference:
            raise ConfigError(
                "a secret is still a reference: only the process that runs the connector's task "
                "resolves it; in a test, pass the text itself"
            )
        return self._text

    def resolved(self, resolve: Callable[[str], str]) -> Secret:
        """Return the secret with its references replaced by `resolve(text)`."""
        return Secret(resolve(self._text)) if self.is_reference else self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Secret('{self.shown}')"

    def __str__(self) -> str:
        return self.shown


def resolve_secrets(settings: S, resolve: Callable[[str], str]) -> S:
    """Return settings with the references of all their secrets replaced.

    Args:
        settings: a connector, or any Struct of settings; Structs inside it are searched, too.
        resolve: returns a text with its references replaced.

    Raises:
        ConfigError: `resolve` can't find what a secret refers to.
    """
    changes: dict[str, object] = {}
    for name in settings.__struct_fields__:
        value: object = getattr(settings, name)
        if isinstance(value, Secret):
            changes[name] = value.resolved(resolve)
        elif isinstance(value, msgspec.Struct):
            changes[name] = resolve_secrets(value, resolve)
    return msgspec.structs.replace(settings, **changes) if changes else settings
