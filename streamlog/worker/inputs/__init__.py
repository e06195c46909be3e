"""Inputs of a worker: where they start and end, and whether they are the logs that were read."""
