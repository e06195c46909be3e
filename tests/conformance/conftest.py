"""One broker process for all conformance tests of a test worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.broker.process import BrokerProcess


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance") / "data"


@pytest.fixture(scope="session")
def broker(data: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(data) as running:
        yield running
