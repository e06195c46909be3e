# C types of arenas.py.
from streamlog.worker cimport huge_pages
