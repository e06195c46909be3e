# C types of request_metrics.py.
cimport cython

from streamlog.metrics.instruments cimport Counter, Histogram

@cython.final
cdef class ApiMeter:
    cdef readonly object api
    cdef readonly Counter requests
    cdef object _errors
    cdef readonly Histogram queue
    cdef readonly Histogram local
    cdef readonly Histogram remote
    cdef readonly Histogram response_queue
    cdef readonly Histogram total

@cython.final
cdef class RequestMetrics:
    cdef object _requests
    cdef object _errors
    cdef dict _meters

    cpdef ApiMeter meter(self, str api, int version)
