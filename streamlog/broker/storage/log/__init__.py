"""One partition's log: segments, indexes, producers, leader epochs, appends and recovery."""
