"""What `worker` prints about the connectors of an app before it starts."""

from __future__ import annotations

from streamlog import App
from streamlog.cli.worker_command import describe_sink, describe_source
from streamlog.connectors.objects import Objects
from streamlog.connectors.tail import Tail


def test_a_worker_names_each_connector_with_its_topics_and_its_promise() -> None:
    app = App("web")
    lines = app.topic("lines", key=str, value=bytes)
    app.source(lines, Tail(path="/var/log/app.log"), name="tail")
    app.sink(lines, Objects(url="/tmp/files"), name="files")  # noqa: S108 - never opened
    program = app.program()
    assert [*map(describe_source, program.source_connectors)] == [
        "tail: Tail to lines, exactly once"
    ]
    assert [*map(describe_sink, program.sink_connectors)] == [
        "files: lines to Objects, exactly once"
    ]
