"""The modules that `streamlog doctor` calls hot are the ones that `setup.py` compiles."""

from __future__ import annotations

import re
from pathlib import Path

from streamlog.metrics.build_info import HOT_MODULES

ROOT = Path(__file__).parent.parent.parent


def test_doctor_and_setup_name_equal_modules() -> None:
    line = re.search(r"HOT_MODULES = \((.*?)\)", (ROOT / "setup.py").read_text(), re.DOTALL)
    assert line is not None
    compiled = [path.replace("/", ".") for path in re.findall(r'"([^"]+)"', line[1])]
    assert list(HOT_MODULES) == compiled
    for path in compiled:
        assert (ROOT / path.replace(".", "/")).with_suffix(".pxd").exists()
