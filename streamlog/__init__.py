"""Stream processing for Python on a log of its own that speaks the Kafka protocol."""

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
from streamlog.errors import ProcessingError, StreamlogError
from streamlog.record import Late, Record, Windowed
from streamlog.serdes import Serde, migration
from streamlog.snapshots.snapshot import Snapshot
from streamlog.topology import Aggregator, ErrorPolicy, on_error
from streamlog.windows.calendar import calendar
from streamlog.windows.counted import count_window
from streamlog.windows.definitions import Windows, hopping, tumbling
from streamlog.windows.emit import Emit
from streamlog.windows.joins import JoinWindow
from streamlog.windows.sessions import session
from streamlog.windows.sliding import sliding

__all__ = [
    "AgentRef",
    "Aggregator",
    "App",
    "Context",
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
