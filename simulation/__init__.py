"""Simulation: the shipped code on a simulated network, disk and clock, many short lives long.

A life is a function of its seed alone: what it draws, what fails, and in which order things happen.
Levels (`levels`) are what lives: a state machine with its peers, or whole brokers and clients.
Not part of the package. `make simulate SEEDS=100` lives a hundred of each level, `SEED=n` one
again.
"""
