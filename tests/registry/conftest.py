"""One broker with a registry for all tests of a file that change different subjects."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.registry.running import RunningRegistry, run_registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    with run_registry(tmp_path_factory.mktemp("log")) as running:
        yield running
