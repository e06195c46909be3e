"""A release: which version follows, where its changelog goes, which wheels are complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.metrics.build_info import HOT_MODULES
from tools.release import (
    FEATURES,
    FIXES,
    FREE,
    MARK,
    kinds_of,
    licences_of,
    next_version,
    section_of,
    with_section,
)
from tools.wheels import ROOT, compiled_in, problem_of

KINDS = st.sets(st.sampled_from([*FEATURES, *FIXES, "removed"]), min_size=1)
NUMBERS = st.tuples(*[st.integers(0, 30)] * 3)


@pytest.mark.parametrize(
    ("current", "kinds", "following"),
    [
        ("0.1.0", {"fixed"}, "0.1.1"),
        ("0.1.4", {"fixed", "added"}, "0.2.0"),
        ("0.9.1", {"removed"}, "0.10.0"),
        ("1.2.3", {"security"}, "1.2.4"),
        ("1.2.3", {"deprecated"}, "1.3.0"),
        ("1.2.3", {"removed", "fixed"}, "2.0.0"),
    ],
)
def test_the_kinds_of_changes_decide_on_the_version(
    current: str, kinds: set[str], following: str
) -> None:
    assert next_version(current, kinds) == following


@given(NUMBERS, KINDS)
def test_a_version_raises_one_number_and_clears_those_behind(
    numbers: tuple[int, int, int], kinds: set[str]
) -> None:
    following = [*map(int, next_version(".".join(map(str, numbers)), kinds).split("."))]
    raised = next(at for at in range(3) if following[at] != numbers[at])
    assert following[raised] == numbers[raised] + 1
    assert following[raised + 1 :] == [0] * (2 - raised)
    assert (raised == 2) == (kinds <= FIXES)


@pytest.mark.parametrize(
    ("current", "kinds"), [("0.1.0", set()), ("0.1", {"fixed"}), ("1.2.3rc1", {"fixed"})]
)
def test_a_release_of_nothing_or_of_an_unknown_version_is_refused(
    current: str, kinds: set[str]
) -> None:
    with pytest.raises(ValueError, match=r"changelog\.d|version"):
        next_version(current, kinds)


def test_every_fragment_has_a_kind() -> None:
    names = [path.name for path in (ROOT / "changelog.d").glob("*.*.md")]
    assert kinds_of(names) <= {*FEATURES, *FIXES, "removed"}
    with pytest.raises(ValueError, match="'invented'"):
        kinds_of(["+broker.invented.md"])


def test_a_section_stands_before_those_of_older_versions() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    section = "## 9.9.9 - 2030-01-01\n\n### Fixed\n\n- A fault."
    changed = with_section(text, section)
    assert changed.replace(f"\n{section}\n", "", 1) == text
    assert changed.index("## 9.9.9") < changed.index("## 0.1.0")
    assert section_of(changed, "9.9.9") == "### Fixed\n\n- A fault.\n"
    with pytest.raises(ValueError, match="no section of version 9"):
        section_of(text, "9.9.9")
    with pytest.raises(ValueError, match="lacks the line"):
        with_section(text.replace(MARK, ""), section)


def test_licences_are_found_in_each_form_of_an_sbom() -> None:
    forms = [{"expression": "Apache-2.0"}, {"license": {"id": "MIT"}}]
    assert licences_of({"licenses": forms}) == "Apache-2.0, MIT"
    assert licences_of({"licenses": [{"license": {"name": "BSD\n\nCopyright"}}]}) == "BSD"
    assert licences_of({}) == ""
    assert FREE.search("GPL-3.0-or-later") is None


def test_a_wheel_of_one_python_has_every_hot_module_compiled() -> None:
    paths = [f"{name.replace('.', '/')}.cpython-312-x86_64-linux-gnu.so" for name in HOT_MODULES]
    sources = [f"{name.replace('.', '/')}.py" for name in HOT_MODULES]
    assert compiled_in(paths + sources) == [*HOT_MODULES]
    assert problem_of("cp312-cp312-linux_x86_64", paths + sources) is None
    assert HOT_MODULES[0] in (problem_of("cp312-cp312-linux_x86_64", paths[1:]) or "")
    assert problem_of("py3-none-any", sources) is None
    assert HOT_MODULES[0] in (problem_of("py3-none-any", sources + paths) or "")
