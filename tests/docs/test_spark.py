"""docs/spark.md: its programs compile, its commands exist, and its settings are those of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from spark_bridge import ensure_java
from tests.docs.commands import check, commands
from tests.docs.transcripts import steps
from tests.spark_bridge.cluster import SETTINGS, cluster
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import streamlog

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/spark.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
SESSION = (ROOT / "spark_bridge/spark_session.py").read_text()


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_compiles(program: str) -> None:
    compile(program, "spark.md", "exec")


@pytest.mark.parametrize("line", commands(re.sub(r"streamlog -A \w+", "streamlog", TEXT)))
def test_a_command_exists_with_its_options(line: str) -> None:
    check(line)


def test_the_settings_of_a_session_of_ones_own_are_those_of_ours() -> None:
    (block,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    given = dict(line.split("=") for line in block.splitlines() if not line.startswith("#"))
    assert len(given) == 2
    for name, value in given.items():
        assert f'"{name}": "{value}"' in SESSION


@pytest.mark.spark
@pytest.mark.skipif(not IS_THOROUGH, reason="seven processes of Java: `make spark`")
@pytest.mark.timeout(900)
def test_spark_submit_runs_the_history_of_the_page_on_a_cluster(tmp_path: Path) -> None:
    """On a standalone cluster; the executors get the app by `--py-files`."""
    for step in steps((ROOT / "docs/tutorial.md").read_text()):
        if step.file:
            (tmp_path / step.file).write_text(step.text)
    app = tmp_path / "bakery.py"
    app.write_text(
        app.read_text().replace('App("bakery")', f'App("bakery", log="embedded:{tmp_path}/log")')
    )
    (job,) = re.findall(r"```python\n# job.py\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "job.py").write_text(job.replace("s3://bucket/snapshots", f"{tmp_path}/snapshots"))
    (settings,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "history.properties").write_text(settings)
    for topic in ("prices", "sales", "more"):
        into = "prices" if topic == "prices" else "sales"
        sent = ("send", into, "--file", f"{topic}.txt", "--key-separator", " ")
        assert streamlog("-A", "bakery", *sent, cwd=tmp_path)[0] == 0
    spark_home = Path(pyspark.__file__).parent
    environment = os.environ | SETTINGS
    environment |= {"JAVA_HOME": str(ensure_java()), "SPARK_HOME": str(spark_home)}
    environment["PYSPARK_PYTHON"] = sys.executable
    with cluster(tmp_path / "cluster") as url:
        (line,) = re.findall(r"^spark-submit --master spark://.*$", TEXT, re.MULTILINE)
        words = line.replace("spark://head:7077", url).split()
        done = subprocess.run(
            [spark_home / "bin" / words[0], *words[1:]],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-5_000:]
    assert f"{tmp_path}/snapshots/" in done.stdout
