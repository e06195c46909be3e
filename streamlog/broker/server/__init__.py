"""Sockets: listeners, connections, TLS, SASL, and what clients may cost."""
