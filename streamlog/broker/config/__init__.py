"""The tables of settings: broker, topics, groups, security, quorum."""
