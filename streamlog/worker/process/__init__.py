"""Worker processes on one machine, and their memory."""
