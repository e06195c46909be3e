# C types of frame_reader.py.
cimport cython

@cython.final
cdef class FrameReader:
    cdef public Py_ssize_t size_bytes_max
    cdef bytearray _bytes
    cdef readonly object _buffer
    cdef Py_ssize_t _start
    cdef Py_ssize_t _end
    cdef Py_ssize_t _wanted_bytes
    cdef bint _filled
    cdef bint _is_lent

    @cython.locals(end_bytes=cython.Py_ssize_t)
    cpdef room(self)
    cpdef bint lend(self) except -1
    cpdef stay_small(self)
    cpdef bint took(self, Py_ssize_t size_bytes) except -1

    @cython.locals(first=cython.Py_ssize_t, held_bytes=cython.Py_ssize_t, size_bytes=cython.longlong)
    cpdef next_frame(self)
    cpdef held(self)
    cpdef skip(self, Py_ssize_t size_bytes)
    cdef Py_ssize_t _grown(self) except -1
    cdef _take_buffer(self, Py_ssize_t size_bytes)

    @cython.locals(needed_bytes=cython.Py_ssize_t)
    cdef _move(self)
