"""Pictures as Mermaid and Graphviz text."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from streamlog.blueprints.picture import Arrow, Box, Picture, dot, mermaid

ODD = Picture(
    'an "app"',
    {"g": 'a "group" <1>'},
    (
        Box("a/b", "topic", ('say "hi"',)),
        Box("x", "state", ("x", "back\\slash", "<b>"), "g", "changed"),
    ),
    (Arrow("a/b", "x"), Arrow("x", "x", dashed=True)),
)


def test_mermaid_text_is_escaped() -> None:
    text = mermaid(ODD)
    assert text.startswith("flowchart LR\n")
    assert '  n0[("say &quot;hi&quot;")]:::topic' in text
    assert '  subgraph g0["a &quot;group&quot; &lt;1&gt;"]' in text
    assert '    n1[["x<br/>back\\slash<br/>&lt;b&gt;"]]:::state' in text
    assert "  n0 --> n1\n  n1 -.-> n1\n  class n1 changed\n" in text


def test_dot_text_is_escaped() -> None:
    text = dot(ODD)
    assert text.startswith('digraph "an \\"app\\"" {')
    assert 'n0 [label="say \\"hi\\"", shape=cylinder' in text
    assert '    n1 [label="x\\nback\\\\slash\\n<b>"' in text
    assert "n0 -> n1;" in text
    assert "n1 -> n1 [style=dashed];" in text


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_the_dot_text() -> None:
    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=dot(ODD), capture_output=True, text=True, check=True
    )
    assert "back\\slash" in drawn.stdout
