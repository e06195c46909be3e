# C types of arenas.py.
from streamlog.worker.process cimport huge_pages
