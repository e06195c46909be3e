"""This broker as a node of its cluster: registration, metadata, other nodes."""
