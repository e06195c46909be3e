# C types of turn.py.
cimport cython

@cython.final
cdef class Turn:
    cdef int _depth
    cdef list _later

    cpdef later(self, object callback)

    @cython.locals(later=list)
    cdef _call(self)
