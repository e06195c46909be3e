"""Commands that run one app while it is written, and read or remove what it has stored."""
