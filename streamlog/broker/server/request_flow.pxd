# C types of request_flow.py. A `cdef` method is called by this module alone.
cimport cython

from streamlog.metrics.instruments cimport ApiMeter
from streamlog.protocol.fetch_patterns cimport FetchPattern
from streamlog.protocol.frame_reader cimport FrameReader
from streamlog.protocol.produce_runs cimport ProducePattern, ProduceRun

cdef Py_ssize_t _IN_FLIGHT_MAX, _WRITE_BUFFER_BYTES, _KEPT_DUE_MAX

@cython.final
@cython.freelist(32)
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

cdef class RequestFlow:
    cdef object _full_way
    cdef public object _broker
    cdef public object _connections
    cdef public object _gate
    cdef public object _number
    cdef public FrameReader _reader
    cdef public object _writer
    cdef public object _transport
    cdef public dict _contexts
    cdef public object _patterns
    cdef public FetchPattern _fetch_pattern
    cdef public object _queue
    cdef public Py_ssize_t _queued_bytes
    cdef Py_ssize_t _held_bytes
    cdef public bint _is_checked
    cdef object _checks
    cdef public Py_ssize_t _granted_bytes
    cdef public object _metrics
    cdef object _turn
    cdef object _clock
    cdef public double _arrived_s
    cdef public double _now_s
    cdef public Py_ssize_t _reads_done
    cdef Py_ssize_t _looked_at
    cdef public Py_ssize_t _received_bytes
    cdef public object _muted
    cdef list _out
    cdef Py_ssize_t _out_bytes
    cdef public bint _reads
    cdef bint _logs_responses
    cdef public bint _ended

    cpdef _context(self, int version, object client_id)
    cdef _work(self)
    cdef _end_work(self)
    cdef _read_on(self, bint wanted)

    @cython.locals(slot=QueuedRequest)
    cdef _take_up_frames(self)

    cdef bint _has_room(self) except -1
    cdef bint _is_full(self) except -1

    @cython.locals(due_bytes=cython.Py_ssize_t)
    cdef bint _has_memory(self) except -1

    @cython.locals(
        has_quotas=cython.bint, meter=ApiMeter, pattern=ProducePattern, run=ProduceRun
    )
    cdef bint _take_up_run(self) except -1

    @cython.locals(pattern=FetchPattern, meter=ApiMeter)
    cdef bint _repeats_fetch(self, object frame) except -1

    cdef _take_answer(self, QueuedRequest slot, object answer)
    cdef _hold_if_checked(self)
    cdef _fill(self, QueuedRequest slot, object response)

    @cython.locals(slot=QueuedRequest)
    cdef _drain(self)

    @cython.locals(handed_out_s=cython.double)
    cdef _finish(self, QueuedRequest slot, list pieces)

    @cython.locals(pattern=FetchPattern)
    cdef list _encoded(self, QueuedRequest slot, object response)
    cdef _hand_out(self, list pieces)
    cdef _write(self)

    @cython.locals(held_bytes=cython.Py_ssize_t)
    cdef _count(self)
