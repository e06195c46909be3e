"""The name of the package: in pyproject.toml, and wherever something says how to install it."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

from streamlog.metrics.build_info import DISTRIBUTION, install_command, release

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted(
    path for top in ("streamlog", "spark_bridge", "examples") for path in (ROOT / top).rglob("*.py")
)
INSTALLED = re.compile(r"pip install[ -][^`\n]*?\bstreamlog\b(-py)?(?:\[([\w,-]+)\])?")
ASKED = re.compile(r"install_command\(['\"]([\w-]+)['\"]\)")


def test_the_project_has_the_name_of_the_constant() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_the_release_is_the_one_that_is_installed() -> None:
    assert release() == importlib.metadata.version(DISTRIBUTION) == PROJECT["version"]


def test_commands_name_the_distribution_and_the_extra() -> None:
    assert install_command() == "pip install streamlog-py"
    assert install_command("web") == "pip install 'streamlog-py[web]'"


@pytest.mark.parametrize("paths", [PAGES, SOURCES], ids=["pages", "sources"])
def test_whatever_says_how_to_install_names_the_distribution_and_an_extra_that_exists(
    paths: list[Path],
) -> None:
    wrong = []
    for path in paths:
        for found in INSTALLED.finditer(path.read_text()):
            extras = (found.group(2) or "").split(",") if found.group(2) else []
            is_right = found.group(1) and set(extras) <= set(PROJECT["optional-dependencies"])
            if not is_right:
                wrong.append(f"{path.relative_to(ROOT)}: {found.group()}")
    assert not wrong


def test_each_extra_that_a_message_names_exists() -> None:
    asked = {name for path in SOURCES for name in ASKED.findall(path.read_text())}
    assert asked
    assert asked <= set(PROJECT["optional-dependencies"])
