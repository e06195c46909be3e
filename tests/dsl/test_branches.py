from __future__ import annotations

import pytest

from streamlog.dsl.stream import Branches
from streamlog.errors import TopologyError


def test_a_branch_that_is_not_there_is_refused() -> None:
    with pytest.raises(TopologyError, match="no branch 'smal', only small, large; did you mean"):
        Branches(small=1, large=2)["smal"]
