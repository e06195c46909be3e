# C types of columns.py.
cimport cython

cpdef bint has_none(object column) except -1

@cython.locals(found=list, own_bytes=cython.Py_ssize_t, size=cython.Py_ssize_t)
cpdef list sizes(object records, Py_ssize_t record_bytes, Py_ssize_t header_bytes)
