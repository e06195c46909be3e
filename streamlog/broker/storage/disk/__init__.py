"""The disk: files behind a port, open descriptors, and the thread that slow calls go to."""
