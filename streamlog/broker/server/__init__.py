"""The server: listeners, connections, TLS, SASL, and limits on clients."""
