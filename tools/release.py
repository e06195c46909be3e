"""`make release`: a dry run of a release. Everything but the pushing happens, in `build/release`.

The fragments in `changelog.d` decide on the next version and become its section of the changelog.
The distributions are built from a copy of the last commit with that version, checked, and
described by an SBOM. The checkout stays as it is, and nothing leaves the machine: what a release
would commit, tag and upload is printed. `.github/workflows/release.yml` uploads on a forge, after
an approval.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tools.wheels import ROOT, VERSIONS, build_all, tool

OUT = ROOT / "build" / "release"
MARK = "<!-- towncrier release notes start -->\n"
FEATURES = {"added", "changed", "deprecated"}
FIXES = {"fixed", "security"}
FREE = re.compile(r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL-2\.0|0BSD|CC0|Unlicense")
"""Licences that ask a user of streamlog for no more than a copy of their text."""
ACCEPTED = {"crc32c": "LGPL-2.1-or-later: installed beside streamlog, and anyone may replace it"}
VENDORED = ROOT / "streamlog" / "console" / "static" / "uplot.js"


def kinds_of(names: Iterable[str]) -> set[str]:
    """Return the kinds of the fragments with these file names.

    Raises:
        ValueError: a name has no kind that a changelog knows.
    """
    kinds = set()
    for name in names:
        kind = name.removesuffix(".md").rpartition(".")[2]
        if kind not in {*FEATURES, *FIXES, "removed"}:
            raise ValueError(f"changelog.d/{name}: {kind!r} is no kind of change")
        kinds.add(kind)
    return kinds


def next_version(current: str, kinds: set[str]) -> str:
    """Return the version that follows by SemVer, as docs/releases.md has it.

    Before 1.0, a minor version may remove a feature.

    Raises:
        ValueError: nothing has changed, or the current version is none of SemVer.
    """
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", current)
    if found is None:
        raise ValueError(f"version {current!r} is not of the form 1.2.3")
    major, minor, patch = map(int, found.groups())
    if not kinds:
        raise ValueError("changelog.d has no fragment, so there is nothing to release")
    if "removed" in kinds and major:
        return f"{major + 1}.0.0"
    if kinds & {*FEATURES, "removed"}:
        return f"{major}.{minor + 1}.0"
    return f"{major}.{minor}.{patch + 1}"


def with_section(changelog: str, section: str) -> str:
    """Return the changelog with the section of a version before all others.

    Raises:
        ValueError: it has no mark where sections begin.
    """
    before, mark, after = changelog.partition(MARK)
    if not mark:
        raise ValueError(f"CHANGELOG.md lacks the line {MARK.strip()!r}")
    return f"{before}{mark}\n{section.strip()}\n{after}"


def section_of(changelog: str, version: str) -> str:
    """Return the section of a version, without its title.

    Raises:
        ValueError: there is none.
    """
    found = re.search(rf"(?ms)^## {re.escape(version)}\b[^\n]*\n(.*?)(?=^## |\Z)", changelog)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section of version {version}")
    return found[1].strip() + "\n"


def licences_of(component: Mapping[str, Any]) -> str:
    """Return the licences of a component of an SBOM; empty if it names none."""
    found = component.get("licenses", [])
    texts = [
        each.get("expression") or each["license"].get("id") or each["license"].get("name", "")
        for each in found
    ]
    # A text that was pasted into the field for a name is known by its first line.
    return ", ".join(sorted({text.strip().splitlines()[0] for text in texts if text.strip()}))


def command(*words: str, cwd: Path = ROOT) -> str:
    """Return what a program prints.

    Raises:
        SystemExit: it failed; its output is the message.
    """
    # A PYTHONPATH would lead programs of another environment back to this checkout.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words,
        cwd=cwd,
        env={**variables, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def copy_commit() -> Path:
    """Copy the files of the last commit; return the copy."""
    shutil.rmtree(OUT, ignore_errors=True)
    source = OUT / "source"
    source.mkdir(parents=True)
    command("git", "archive", "--output", str(OUT / "source.tar"), "HEAD")
    command("tar", "-xf", str(OUT / "source.tar"), "-C", str(source))
    (OUT / "source.tar").unlink()
    return source


def raise_version(source: Path, version: str) -> None:
    """Give a copy the next version, and its fragments a section of the changelog."""
    settings = source / "pyproject.toml"
    line = f'version = "{version}"'
    settings.write_text(re.sub(r'(?m)^version = "[^"]+"$', line, settings.read_text(), count=1))
    date = datetime.now(UTC).date().isoformat()
    draft = ("build", "--draft", "--version", version, "--date", date)
    section = command(tool("towncrier"), *draft, cwd=source)
    changelog = source / "CHANGELOG.md"
    changelog.write_text(with_section(changelog.read_text(), section))
    for fragment in (source / "changelog.d").glob("*.*.md"):
        fragment.unlink()


def describe_parts(wheel: Path, source: Path) -> list[Mapping[str, Any]]:
    """Write the SBOM of a wheel with what it needs; return its components."""
    environment, file = OUT / "environment", OUT / "sbom.cdx.json"
    python = str(environment / "bin" / "python")
    command(tool("uv"), "venv", "--quiet", "--python", sys.executable, str(environment))
    command(tool("uv"), "pip", "install", "--quiet", "--python", python, str(wheel))
    options = ("--pyproject", str(source / "pyproject.toml"), "--mc-type", "library")
    written = ("--output-reproducible", "--validate", "--output-file", str(file))
    command(tool("cyclonedx-py"), "environment", *options, *written, python)
    found = json.loads(file.read_text())
    version = re.search(r"\(v([\d.]+)\)", VENDORED.read_text()[:200])
    if version is None:
        raise SystemExit(f"{VENDORED} does not name its version in its first line")
    # No installer knows of the script that the console's pages load.
    vendored = {
        "type": "library",
        "bom-ref": f"uplot=={version[1]}",
        "name": "uplot",
        "version": version[1],
        "purl": f"pkg:npm/uplot@{version[1]}",
        "licenses": [{"license": {"id": "MIT"}}],
    }
    found["components"].append(vendored)
    file.write_text(json.dumps(found, indent=2) + "\n")
    components: list[Mapping[str, Any]] = found["components"]
    return components


def show_licences(components: Sequence[Mapping[str, Any]]) -> list[str]:
    """Print the licences of all components; return those that are unknown or not free enough."""
    table = Table("component", "version", "licence", title="licences", title_justify="left")
    refused = []
    for each in sorted(components, key=lambda each: str(each["name"]).lower()):
        licence = licences_of(each)
        table.add_row(each["name"], each.get("version", ""), licence or "unknown")
        if FREE.search(licence) is None and each["name"] not in ACCEPTED:
            refused.append(f"{each['name']}: {licence or 'no licence is named'}")
    Console(width=100).print(table)
    return refused


def show_plan(version: str, files: Sequence[Path], fragments: int) -> None:
    """Print what a release would push."""
    print(f"\nA release would push, and this run does not:\n\n  commit  Release {version}:")
    print(f"          pyproject.toml, CHANGELOG.md, and changelog.d without {fragments} fragments")
    print(f"  tag     v{version}\n  upload  to the package index:")
    for file in files:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"          {file.name}  sha256 {digest[:16]}...")
    print("  notes   notes.md and sbom.cdx.json of build/release, with the tag on the forge")


def main() -> None:
    """Do all steps, and print what a release would push.

    Raises:
        SystemExit: a check failed.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--tests-with", metavar="PYTHON", help="an interpreter that has pytest")
    parser.add_argument("--python", nargs="*", default=VERSIONS, help="versions to build for")
    parser.add_argument("--tagged", action="store_true", help="the commit has its version already")
    given = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    fragments = [path.name for path in (ROOT / "changelog.d").glob("*.*.md")]
    source = copy_commit()
    if not given.tagged:
        current, version = version, next_version(version, kinds_of(fragments))
        print(f"{current} -> {version}, by {len(fragments)} fragments")
        raise_version(source, version)
    if given.tests_with:
        command(given.tests_with, "-m", "pytest", "-q", "tests/test_surface.py")
        print("public names: those of tests/test_surface.py")
    (OUT / "notes.md").write_text(section_of((source / "CHANGELOG.md").read_text(), version))
    files, missing = build_all(source, OUT / "dist", given.python)
    print(command(tool("twine"), "check", "--strict", *map(str, files)).strip())
    refused = show_licences(describe_parts(files[1], source))
    show_plan(version, files, len(fragments))
    problems = [f"no Python {each} here: no wheel for it" for each in missing]
    problems += [f"licence of {each}" for each in refused]
    if command("git", "status", "--porcelain").strip():
        problems.append("the checkout has changes that are not committed, and not in the release")
    for problem in problems:
        print(f"  to mend before a real release: {problem}")
    if refused:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
