"""Serialization of revisions."""

from __future__ import annotations

import pytest

from streamlog.errors import SerdeError
from streamlog.serdes import form_of, serde_for
from streamlog.tables.change_serdes import Revision, RevisionSerde


@pytest.mark.parametrize("revision", [Revision(None, 1), Revision(2, None), Revision(0, 0)])
def test_a_revision_round_trips(revision: Revision) -> None:
    serde = RevisionSerde(serde_for(int))
    assert serde.loads(serde.dumps(revision)) == revision


def test_bytes_that_are_no_revision_are_refused() -> None:
    with pytest.raises(SerdeError, match="not a revision"):
        RevisionSerde(serde_for(int)).loads(b"12")


def test_a_revision_s_form_contains_its_value_s_form() -> None:
    assert form_of(RevisionSerde(serde_for(int))) == {"revision": form_of(serde_for(int))}
