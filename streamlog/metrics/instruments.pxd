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

@cython.final
cdef class ApiMeter:
    cdef readonly object api
    cdef readonly Counter requests
    cdef readonly Histogram queue
    cdef readonly Histogram local
    cdef readonly Histogram remote
    cdef readonly Histogram response_queue
    cdef readonly Histogram total

@cython.final
cdef class LoopTimes:
    cdef public double idle_s
    cdef public Histogram holds
    cdef double _woke_s
    cdef double _turn_s
    cdef double _now_s
    cdef double _before_s

    @cython.locals(hold_s=cython.double)
    cpdef on_wait(self, double now_s)
    cpdef on_wake(self, double began_s, double now_s)
    cpdef double longest_hold_s(self, double now_s)

    cdef _turn(self, double now_s)
