"""Chaos: brokers as processes under a load, and what goes wrong with processes, disks and networks.

The load, its history and the checkers are those of `simulation`; here brokers are processes as a
user has them, stopped and paused by signals, in networks that are cut (`network`), on disks that
forget what was not synced (`power`) and clocks that jump, by a library of ours that is preloaded
(`shim.c`). Not part of the package. `make chaos` runs it, `python -m chaos KIND --seed n` again.
"""
