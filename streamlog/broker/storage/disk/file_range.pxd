# C types of file_range.py.
cimport cython

@cython.final
cdef class FileRange:
    cdef object _descriptor
    cdef Py_ssize_t _size_bytes
    cdef long long _position

    @cython.locals(data=bytes)
    cpdef bytes read(self)
    cpdef FileRange part(self, Py_ssize_t start_bytes, Py_ssize_t size_bytes)

    @cython.locals(left_bytes=cython.Py_ssize_t, position=cython.longlong)
    cpdef Py_ssize_t send(self, int socket_descriptor, Py_ssize_t sent_bytes) except -1
