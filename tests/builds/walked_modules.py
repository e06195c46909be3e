"""Prints the hot modules that each counted path calls, as JSON: a program for `test_hot_paths`.

Compiled code can't be traced, so the modules of the package are read as Python.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tools.journeys import Trace, read_sources


async def walked() -> dict[str, list[str]]:
    """Run a batch of each path, and return the modules that it has called."""
    from benchmarks import record_paths  # noqa: PLC0415 - its imports are read as Python
    from benchmarks.whole_paths import open_whole_paths  # noqa: PLC0415 - these as well
    from streamlog.metrics.build_info import HOT_MODULES  # noqa: PLC0415 - and this

    trace, found = Trace(), dict[str, list[str]]()
    async with open_whole_paths() as whole:
        for name, path in {**record_paths.PATHS, **whole}.items():
            path.run()  # What is made once is made now.
            with trace.window(name):
                sys.setprofile(trace)
                path.run()
                sys.setprofile(None)
            called = {file.removesuffix(".py").replace("/", ".") for file in trace.take(name)}
            found[name] = [each for each in HOT_MODULES if each in called]
    return found


if __name__ == "__main__":
    sys.path_hooks.insert(0, read_sources)
    sys.path_importer_cache.clear()
    json.dump(asyncio.run(walked()), sys.stdout)
