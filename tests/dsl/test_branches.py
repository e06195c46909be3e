from __future__ import annotations

import pytest

from streamlog.dsl.stream import Branches
from streamlog.errors import TopologyError


def test_an_unknown_branch_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TopologyError, match="no branch 'smal', only small, large; did you mean"):
        Branches(small=1, large=2)["smal"]
