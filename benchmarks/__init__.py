"""Figures that a command reproduces: `python -m benchmarks`."""
