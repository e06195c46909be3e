"""Timers and crontabs of the app, and the log of their runs."""
