# C types of socket_writer.py.
cimport cython

@cython.final
cdef class SocketWriter:
    cdef object _socket
    cdef object _loop
    cdef object _on_room
    cdef object _on_failure
    cdef object _queue
    cdef Py_ssize_t _sent_bytes
    cdef readonly bint blocked
    cdef readonly Py_ssize_t unblockings
    cdef bint _closed

    cpdef write(self, object pieces)

    @cython.locals(taken=cython.Py_ssize_t, turn_bytes=cython.Py_ssize_t)
    cdef _send(self)

    @cython.locals(taken=cython.Py_ssize_t)
    cdef Py_ssize_t _send_some(self) except -1

    cdef tuple _gathered(self)

    @cython.locals(left=cython.Py_ssize_t)
    cdef _advance(self, Py_ssize_t taken)
