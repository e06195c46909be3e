# C types of deliveries.py.
cimport cython
from streamlog.client.producer.open_batches cimport metadata_of

cdef object _CancelledError, _InvalidStateError

@cython.final
cdef class DeliveryRun:
    cdef readonly object loop
    cdef list _times
    cdef Py_ssize_t _start
    cdef Py_ssize_t _count
    cdef object _base
    cdef dict _rows
    cdef dict _watchers
    cdef object _unheard

    cpdef RecordDelivery add(self)

    cpdef list receipts(self)

    @cython.locals(watchers=dict, watcher=RecordDelivery)
    cpdef deliver(self, object base)

    @cython.locals(watcher=RecordDelivery)
    cpdef settle(self, Py_ssize_t row, object outcome)

    cpdef bint is_known(self, Py_ssize_t row) except -1

    cpdef object outcome(self, Py_ssize_t row)

    cpdef watch(self, Py_ssize_t row, RecordDelivery delivery)

    cpdef unwatch(self, Py_ssize_t row)

@cython.final
@cython.freelist(64)
cdef class RecordDelivery:
    cdef public bint _asyncio_future_blocking
    cdef DeliveryRun _run
    cdef Py_ssize_t _row
    cdef bint _was_given_up
    cdef public object _cancel_message
    cdef list _callbacks

    cpdef bint done(self) except -1

    cpdef object result(self)

    cpdef wake(self)

@cython.final
@cython.freelist(16)
cdef class DeliveryWait:
    cdef RecordDelivery _delivery
    cdef bint _has_waited
