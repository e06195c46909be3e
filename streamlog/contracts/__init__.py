"""Contracts: who writes and who reads which topic with which type, compared across apps."""
