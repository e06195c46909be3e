"""Nodes: the steps of a topology, as frozen data."""
