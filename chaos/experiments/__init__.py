"""Experiments: what a careful operator tries before trusting a cluster, as scripts.

Each starts three brokers as processes, does one thing to them under a producer that writes on, and
tells what has come of it, line by line; it ends with 1 if anything was not as it has to be. Their
results are in docs/reliability.md.
"""
