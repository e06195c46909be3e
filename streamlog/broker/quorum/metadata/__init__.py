"""The cluster's metadata: its records, and the image that they amount to."""
