"""State on disk: RocksDB, task directories and their locks."""
