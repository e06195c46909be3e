"""docs/from-mirrormaker.md names settings of links that exist, and commands with their options."""

from __future__ import annotations

import re
from pathlib import Path

from streamlog.broker.config.broker import BROKER_SETTINGS
from streamlog.broker.config.link import LINK_SETTINGS
from tests.docs.commands import check

TEXT = (Path(__file__).parent.parent.parent / "docs/from-mirrormaker.md").read_text()
SETTING = re.compile(r"`([a-z][a-z.]+)(?:=[^`]*)?`")


def test_the_settings_of_links_exist() -> None:
    table = TEXT[TEXT.index("## Settings") : TEXT.index("## Taking over")]
    rows = re.findall(r"^\| .* \| (.*) \|$", table, re.MULTILINE)
    named = {name for row in rows for name in SETTING.findall(row)}
    assert len(named) > 12
    assert named - {*LINK_SETTINGS, *BROKER_SETTINGS} == set()


def test_the_commands_exist() -> None:
    found = re.findall(r"`streamlog (mirror [a-z]+ .*?|groups [a-z-]+ .*?)`", TEXT)
    assert len(found) == 4
    for each in found:
        check(each)
