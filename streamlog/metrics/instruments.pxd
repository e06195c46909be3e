# C types of instruments.py.
cimport cython

@cython.final
cdef class Counter:
    cdef public object value

@cython.final
cdef class Gauge:
    cdef public object value

@cython.final
cdef class Histogram:
    cdef readonly tuple bounds
    cdef public list counts
    cdef public double sum

    cpdef record(self, double value)

    @cython.locals(at=cython.Py_ssize_t, bound=cython.double)
    cpdef record_many(self, double value, Py_ssize_t count)
