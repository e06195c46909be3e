"""Revisions on their way through a topic."""

from __future__ import annotations

import pytest

from streamlog.errors import SerdeError
from streamlog.serdes import form_of, serde_for
from streamlog.tables.change_serdes import Revision, RevisionSerde


@pytest.mark.parametrize("revision", [Revision(None, 1), Revision(2, None), Revision(0, 0)])
def test_a_revision_comes_back(revision: Revision) -> None:
    serde = RevisionSerde(serde_for(int))
    assert serde.loads(serde.dumps(revision)) == revision


def test_what_is_no_revision_is_told() -> None:
    with pytest.raises(SerdeError, match="not a revision"):
        RevisionSerde(serde_for(int)).loads(b"12")


def test_its_form_is_that_of_the_values() -> None:
    assert form_of(RevisionSerde(serde_for(int))) == {"revision": form_of(serde_for(int))}
