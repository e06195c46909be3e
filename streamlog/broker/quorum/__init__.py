"""The controllers' quorum: the replicated metadata log, what it says, and who decides on it."""
