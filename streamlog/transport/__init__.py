"""Transport: typed requests to a broker and its answers back, over TCP or within the process."""
