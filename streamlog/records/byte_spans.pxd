# C types of byte_spans.py.
cimport cython
from streamlog.records cimport packing

cdef int _END_BYTES, _LINE_END, _RETURN

@cython.locals(
    content="const unsigned char*", count=cython.Py_ssize_t, ends="int[::1]",
    following=cython.Py_ssize_t, row=cython.Py_ssize_t, start=cython.Py_ssize_t,
    starts="int[::1]", stop=cython.Py_ssize_t,
)
cpdef object cut_lines(bytes data, Py_ssize_t end, Py_ssize_t line_bytes_max)
