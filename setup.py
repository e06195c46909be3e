"""Compiles the hot modules where Cython and a C compiler are at hand; everything runs without.

A hot module is ordinary Python with its C types in the `.pxd` beside it. Extensions are optional:
a missing or failing compiler leaves the `.py` in use, slower and otherwise the same.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

HOT_MODULES = (
    "streamlog/metrics/instruments",
    "streamlog/records/varint",
    "streamlog/records/record_columns",
    "streamlog/records/murmur2",
    "streamlog/records/arrow_rows",
    "streamlog/records/byte_spans",
    "streamlog/records/builder",
    "streamlog/records/batch",
    "streamlog/records/record_scan",
    "streamlog/records/arrow",
    "streamlog/connect/arrow_columns/value_buffers",
    "streamlog/connect/row_spans/copied_rows",
    "streamlog/connect/row_spans/json_rows",
    "streamlog/connectors/postgres_cdc/row_reader",
    "streamlog/connectors/syslog/bsd_message_scan",
    "streamlog/connectors/syslog/message_scan",
    "streamlog/protocol/produce_runs",
    "streamlog/broker/request_metrics",
    "streamlog/broker/server/queued_request",
    "streamlog/broker/storage/log/batch_run",
    "streamlog/tables/folds/folding",
    "streamlog/tables/folds/plain_values",
    "streamlog/tables/state/write_buffer",
    "streamlog/processing/windows/window_fold",
    "streamlog/worker/process/arenas",
)
DIRECTIVES = {
    "language_level": "3",
    "annotation_typing": False,  # the .pxd decides on types, not the annotations for mypy
    "boundscheck": False,
    "wraparound": False,
}


def extensions() -> list[Extension]:
    """The hot modules as C extensions; none where Cython is missing."""
    try:
        from Cython.Build import cythonize  # noqa: PLC0415 - installing works without Cython
    except ImportError:
        return []
    sources = [
        # Debugging symbols, which Python's own flags ask for, would take an eighth of the time.
        Extension(path.replace("/", "."), [f"{path}.py"], extra_compile_args=["-g0"])
        for path in HOT_MODULES
    ]
    modules: list[Extension] = cythonize(
        sources,
        build_dir="build/cython",
        compiler_directives=DIRECTIVES,
        exclude_failures=True,
        quiet=True,
    )
    for module in modules:
        module.optional = True  # set here, for cythonize does not keep it
    return modules


setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count() or 1}})
