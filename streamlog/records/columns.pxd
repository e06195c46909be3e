# C types of columns.py.
cpdef bint has_none(object column) except -1
