"""One broker with a registry for all tests of a file that change different subjects.

With `STREAMLOG_REGISTRY_URL`, the registry at these URLs instead; what it holds is deleted first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.registry.running import RunningRegistry, run_registry


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    urls = os.environ.get("STREAMLOG_REGISTRY_URL")
    if urls:
        clear(urls.split(","))
        yield RunningRegistry(urls)
        return
    with run_registry(tmp_path_factory.mktemp("log")) as running:
        yield running


def clear(urls: list[str]) -> None:
    """Delete every subject for good; those that others refer to come after these."""
    for url in urls:
        registry = RunningRegistry(url)
        try:
            while subjects := registry.get("/subjects?deleted=true"):
                for subject in subjects:
                    path = f"/subjects/{quote(subject, safe='')}"
                    for each in ("config", "mode"):
                        registry.ask("DELETE", f"/{each}/{quote(subject, safe='')}")
                    registry.ask("DELETE", path)
                    registry.ask("DELETE", f"{path}?permanent=true")
        except OSError:
            continue  # This broker is being restarted.
        return
