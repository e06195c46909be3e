# C types of open_batches.py.
cimport cython
from streamlog.records.murmur2 cimport partition_of_key
from streamlog.records.record_columns cimport FieldColumns, record_bytes

cdef object _new_tuple

cdef class OpenBatch:
    cdef public FieldColumns columns
    cdef public list entries
    cdef public object run
    cdef public Py_ssize_t size_bytes
    cdef public bint closed

@cython.final
cdef class UsedBytes:
    cdef public Py_ssize_t value

@cython.final
cdef class StickyPartitions:
    cdef object _chance
    cdef dict _current
    cdef dict _begun

    @cython.locals(batch=OpenBatch)
    cpdef Py_ssize_t choose(self, object topic, Py_ssize_t partitions) except -1

    cpdef begin(self, object topic, OpenBatch batch)

    cpdef turn(self, object topic, Py_ssize_t partition, Py_ssize_t partitions)

@cython.final
cdef class _Lane:
    cdef object metadata
    cdef list waiting

@cython.final
cdef class OpenBatches:
    cdef UsedBytes _used
    cdef StickyPartitions _sticky
    cdef dict _newest
    cdef Py_ssize_t _batch_bytes
    cdef Py_ssize_t _buffer_bytes
    cdef object _new_run
    cdef object _wall_ms
    cdef dict _lanes
    cdef public bint is_open
    cdef public Py_ssize_t waiting_callers
    cdef public frozenset own_partitioners

    @cython.locals(
        batch=OpenBatch, chosen=cython.Py_ssize_t, lane=_Lane, size_bytes=cython.Py_ssize_t,
    )
    cpdef object join(self, object topic, object partition, tuple record)

    @cython.locals(batch=OpenBatch)
    cdef OpenBatch _with_room(self, object waiting, Py_ssize_t size_bytes)

    cdef Py_ssize_t _chosen(
        self, object topic, object partition, object key, Py_ssize_t count
    ) except -2

    @cython.locals(lane=_Lane)
    cpdef admit(
        self, object topic, object metadata, Py_ssize_t count, Py_ssize_t chosen, object waiting
    )

cpdef int put(OpenBatch batch, tuple record, Py_ssize_t size_bytes) except -1

@cython.locals(times=list)
cpdef object expect(OpenBatch batch, object new_run)

@cython.locals(last=cython.Py_ssize_t, times=list)
cpdef deliver(OpenBatch batch, object base)

@cython.locals(base_offset=cython.longlong, offset=cython.longlong, time_ms=cython.longlong)
cpdef object metadata_of(object base, Py_ssize_t at, list times)
