"""Chaos: real processes under a load, and what goes wrong with processes, disks and clocks.

The load, its history and the checkers are those of `simulation`; here the broker is a process as a
user has it, killed, stopped and paused by signals, and what its disk and clock do to it is done by
a library of ours that is preloaded (`shim.c`). Power cuts are the simulation's: a kill leaves the
page cache. Not part of the package. `make chaos` runs it, `python -m chaos --seed n` again.
"""
