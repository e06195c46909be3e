"""Steps that join streams and tables."""
