"""Stream processing for Python on a log of its own that speaks the Kafka protocol.

An exported name is imported at its first use. So a broker, which needs nothing of streams, starts
in a fraction of the time.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.dsl.agent import AgentRef
    from streamlog.dsl.aggregators import agg
    from streamlog.dsl.global_table import GlobalTable
    from streamlog.dsl.grouped import Grouped
    from streamlog.dsl.processor import Context, Processor, Store, Timers, kv_store, punctuate
    from streamlog.dsl.stream import Stream
    from streamlog.dsl.table import Table
    from streamlog.dsl.topic import Sent, Topic
    from streamlog.dsl.windowed import WindowedStream
    from streamlog.durations import Dur
    from streamlog.errors import ProcessingError, StreamlogError
    from streamlog.nodes.policies import ErrorPolicy, on_error
    from streamlog.nodes.stream_nodes import Aggregator
    from streamlog.record import Late, Record, Windowed
    from streamlog.serdes import Serde, migration
    from streamlog.snapshots.snapshot import Snapshot
    from streamlog.windows.calendar import calendar
    from streamlog.windows.definitions import (
        Windows,
        count_window,
        hopping,
        session,
        sliding,
        tumbling,
    )
    from streamlog.windows.emit import Emit
    from streamlog.windows.join_windows import JoinWindow

    __version__: str

__all__ = [
    "AgentRef",
    "Aggregator",
    "App",
    "Context",
    "Dur",
    "Emit",
    "ErrorPolicy",
    "GlobalTable",
    "Grouped",
    "JoinWindow",
    "Late",
    "ProcessingError",
    "Processor",
    "Record",
    "Sent",
    "Serde",
    "Snapshot",
    "Store",
    "Stream",
    "StreamlogError",
    "Table",
    "Timers",
    "Topic",
    "Windowed",
    "WindowedStream",
    "Windows",
    "agg",
    "calendar",
    "count_window",
    "hopping",
    "kv_store",
    "migration",
    "on_error",
    "punctuate",
    "session",
    "sliding",
    "tumbling",
]

_HOMES = {
    "app": "App",
    "dsl.agent": "AgentRef",
    "dsl.aggregators": "agg",
    "dsl.global_table": "GlobalTable",
    "dsl.grouped": "Grouped",
    "dsl.processor": "Context Processor Store Timers kv_store punctuate",
    "dsl.stream": "Stream",
    "dsl.table": "Table",
    "dsl.topic": "Sent Topic",
    "dsl.windowed": "WindowedStream",
    "durations": "Dur",
    "errors": "ProcessingError StreamlogError",
    "nodes.policies": "ErrorPolicy on_error",
    "nodes.stream_nodes": "Aggregator",
    "record": "Late Record Windowed",
    "serdes": "Serde migration",
    "snapshots.snapshot": "Snapshot",
    "windows.calendar": "calendar",
    "windows.definitions": "Windows count_window hopping session sliding tumbling",
    "windows.emit": "Emit",
    "windows.join_windows": "JoinWindow",
}
"""What is imported from where: the imports above, which are for type checkers and readers."""

if not TYPE_CHECKING:  # To a type checker it would make every name one of this module.

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names.split():
                found = getattr(_imported(f"streamlog.{home}"), name)
                globals()[name] = found
                return found
        if name == "__version__":
            return _imported("streamlog.metrics.build_info").release()
        raise AttributeError(f"module 'streamlog' has no attribute {name!r}")

    def _imported(module: str) -> object:
        try:
            return import_module(module)
        except (KeyboardInterrupt, RuntimeError):
            # A RuntimeError may be an interrupt, too: see there.
            import_module("streamlog.interrupts").exit_quietly_if_uncaught()
            raise

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
