"""Five more questions about the flights of 2013, one for each kind of window and join."""
