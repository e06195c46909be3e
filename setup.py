"""Compiles the hot modules where Cython and a C compiler are at hand; everything runs without.

A hot module is ordinary Python with its C types in the `.pxd` beside it. Extensions are optional:
a missing or failing compiler leaves the `.py` in use, slower and otherwise the same.
`STREAMLOG_PURE=1` compiles none: that makes the wheel for every platform.

Installing from source should take less than a minute, so the C code is kept small: what Cython
writes into every module that needs it stands once, in `SHARED_MODULE`; no class gets functions for
pickle that is not pickled; functions have no signatures for `inspect`; and gcc optimizes as far as
it pays. What is cold in a hot module stands in a module beside it, which is not compiled.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "streamlog/clock",
    "streamlog/metrics/instruments",
    "streamlog/metrics/event_loop",
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
    "streamlog/protocol/frame_reader",
    "streamlog/protocol/fetch_patterns",
    "streamlog/protocol/produce_runs",
    "streamlog/client/producer/open_batches",
    "streamlog/client/producer/deliveries",
    "streamlog/broker/server/socket_writer",
    "streamlog/broker/server/request_flow",
    "streamlog/broker/storage/disk/os_file",
    "streamlog/broker/storage/log/batch_run",
    "streamlog/broker/storage/log/batch_headers",
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
LEVEL = (
    *("-O1", "-finline-functions", "-finline-small-functions"),
    *("-findirect-inlining", "-fpartial-inlining"),
)
"""Of most modules: what -O2 gives to the C of Cython comes from calls that are written out, and the
rest of -O2 takes most of its time."""
LEVELS = {
    "streamlog/records/record_scan": ("-O3",),
    "streamlog/records/builder": ("-O2",),
    "streamlog/connectors/syslog/bsd_message_scan": ("-O2",),
}
"""Modules whose paths would take over 3 % more instructions: `make bench-instructions` counts."""
DIRECTIVES = {
    "language_level": "3",
    "annotation_typing": False,  # the .pxd decides on types, not the annotations for mypy
    "binding": False,  # signatures are a third of what an import runs, and calls cost more
    "boundscheck": False,
    "wraparound": False,
}
# Python's own flags ask for debugging symbols and for warnings about C that Cython has written, an
# eighth and a sixteenth of the time. A function that was never declared would be missed only at the
# import; here it leaves the `.py` in use.
FLAGS = ["-g0", "-Wno-all", "-Werror=implicit-function-declaration"]
if sys.platform == "linux":
    # What runs once, at the import, is among the longest functions: gcc does not optimize it.
    FLAGS.append('-DCYTHON_SMALL_CODE=__attribute__((optimize("O0")))')
CORES = os.cpu_count() or 1
ROOT = Path(__file__).parent
OURS = b"stream".hex()
"""Begins the build id of a compiled module, whose rest is a digest of its source."""
NOTE = b"GNU\0"
"""Stands before a build id in a file of ELF."""


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
    flags = [*FLAGS, *LEVELS.get(path, LEVEL)]
    links = [f"-Wl,--build-id=0x{build_id(path)}"] if sys.platform == "linux" else []
    return Extension(
        path.replace("/", "."), [f"{path}.py"], extra_compile_args=flags, extra_link_args=links
    )


def build_id(path: str) -> str:
    """Return the build id of a hot module as hexadecimal digits.

    After a rebase, the times of files say nothing about which of them belong together: a compiled
    module names its source, and `stale_modules` compares.
    """
    sources = (ROOT / f"{path}{suffix}" for suffix in (".py", ".pxd"))
    content = b"".join(each.read_bytes() for each in sources if each.exists())
    return OURS + hashlib.sha256(content).hexdigest()[: 40 - len(OURS)]


def stale_modules() -> list[str]:
    """Return the compiled modules of this checkout that another source was compiled to."""
    found = []
    for path in HOT_MODULES:
        for compiled in (ROOT / path).parent.glob(f"{Path(path).name}.*.so"):
            content = compiled.read_bytes()
            # A module without an id of ours comes from another platform, or an older release.
            has_id = NOTE + bytes.fromhex(OURS) in content
            if has_id and NOTE + bytes.fromhex(build_id(path)) not in content:
                found.append(str(compiled.relative_to(ROOT)))
    return found


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
    # Before pip builds, it asks twice for what has no need of C.
    is_asked = not {"egg_info", "dist_info"}.isdisjoint(sys.argv)
    modules = [] if is_asked else extensions()
    setup(ext_modules=modules, options={"build_ext": {"parallel": CORES}})
