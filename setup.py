"""Compiles the hot modules where Cython and a C compiler are at hand; everything runs without.

A hot module is ordinary Python with its C types in the `.pxd` beside it. Extensions are optional:
a missing or failing compiler leaves the `.py` in use, slower and otherwise the same.
`STREAMLOG_PURE=1` compiles none: that makes the wheel for every platform.

Installing from source should take less than a minute, so three things keep the C code small:
what Cython writes into every module that needs it stands once, in `SHARED_MODULE`; no class gets
functions for pickle that is not pickled; and gcc optimizes as far as it pays.
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
SHARED_MODULE = "streamlog._cython_shared"
UNSHARED = ("streamlog/records/varint",)
"""Cython 3.3 leaves out a macro that `bytearray.append` needs if what goes with it is shared."""
PICKLED = ("streamlog/tables/folds/folding",)
"""Spark's plans have columns. Other objects of C would arrive empty: nothing may copy them."""
LEVELS = {
    "streamlog/records/record_scan": "-O3",
    "streamlog/records/batch": "-O2",
    "streamlog/records/arrow_rows": "-O2",
    "streamlog/records/builder": "-O2",
    "streamlog/records/byte_spans": "-O2",
    "streamlog/records/record_columns": "-O2",
    "streamlog/connect/arrow_columns/value_buffers": "-O2",
    "streamlog/connect/row_spans/copied_rows": "-O2",
    "streamlog/connect/row_spans/json_rows": "-O2",
    "streamlog/connectors/postgres_cdc/row_reader": "-O2",
    "streamlog/connectors/syslog/bsd_message_scan": "-O2",
    "streamlog/tables/folds/folding": "-O2",
    "streamlog/tables/folds/plain_values": "-O2",
    "streamlog/processing/windows/window_fold": "-O2",
}
"""Modules whose paths would take over 3 % more instructions or time at -O1 than at -O3, which takes
twice as long to compile: `make bench-instructions` counts."""
DIRECTIVES = {
    "language_level": "3",
    "annotation_typing": False,  # the .pxd decides on types, not the annotations for mypy
    "boundscheck": False,
    "wraparound": False,
}
# Debugging symbols, which Python's own flags ask for, would take an eighth of the time. A function
# that was never declared would be missed only at the import; here it leaves the `.py` in use.
FLAGS = ["-g0", "-Werror=implicit-function-declaration"]
CORES = os.cpu_count() or 1


def extensions() -> list[Extension]:
    """The hot modules as C extensions; none where Cython is missing, or they are not wanted."""
    if os.environ.get("STREAMLOG_PURE") == "1":
        return []
    rest = [path for path in HOT_MODULES if path not in UNSHARED + PICKLED]
    shared = Extension(SHARED_MODULE, [], extra_compile_args=[*FLAGS, "-O1"])
    try:
        modules = in_c([*map(extension, UNSHARED)], None)
        modules += in_c([*map(extension, PICKLED)], SHARED_MODULE, auto_pickle=True)
        modules += in_c([*map(extension, rest), shared], SHARED_MODULE)
    except ImportError:
        return []
    for module in modules:
        module.optional = True  # set here, for cythonize does not keep it
    return modules


def extension(path: str) -> Extension:
    """Return the extension that a hot module becomes."""
    flags = [*FLAGS, LEVELS.get(path, "-O1")]
    return Extension(path.replace("/", "."), [f"{path}.py"], extra_compile_args=flags)


def in_c(
    sources: list[Extension], shared_module: str | None, *, auto_pickle: bool = False
) -> list[Extension]:
    """Return extensions whose sources are translated to C.

    Raises:
        ImportError: there is no Cython; installing works without it.
    """
    from Cython.Build import cythonize  # noqa: PLC0415 - see above

    modules: list[Extension] = cythonize(
        sources,
        nthreads=CORES,
        build_dir="build/cython",
        compiler_directives={**DIRECTIVES, "auto_pickle": auto_pickle},
        shared_utility_qualified_name=shared_module,
        exclude_failures=True,
        quiet=True,
    )
    return modules


# The guard is for the processes of `cythonize`, which may run this file anew.
if __name__ == "__main__":
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": CORES}})
