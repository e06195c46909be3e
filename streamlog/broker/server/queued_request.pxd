# C types of queued_request.py.
cimport cython

from streamlog.broker.request_metrics cimport ApiMeter

@cython.final
cdef class QueuedRequest:
    cdef public object request
    cdef public ApiMeter meter
    cdef public double arrived_s
    cdef public double begun_s
    cdef public double waits_s
    cdef public double ready_s
    cdef public int throttle_ms
    cdef public object answer
    cdef public object pieces

    @cython.locals(count=cython.Py_ssize_t, meter=ApiMeter)
    cpdef record(self, double handed_out_s)
