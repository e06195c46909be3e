# C types of os_files.py: those of open files. Directories are ordinary Python.
cimport cython

from streamlog.broker.storage.disk cimport sync_loop

@cython.final
cdef class _Tail:
    cdef public long long begin
    cdef public bytes data

    @cython.locals(at=cython.longlong)
    cpdef bytes part(self, Py_ssize_t size_bytes, long long position)

@cython.final
cdef class OsFile:
    cdef object _files
    cdef int _descriptor
    cdef object _held
    cdef _Tail _tail
    cdef int _tail_writes

    @cython.locals(part=bytes, tail=_Tail)
    cpdef bytes read(self, Py_ssize_t size_bytes, long long position)

    @cython.locals(part=bytes, tail=_Tail)
    cpdef range(self, Py_ssize_t size_bytes, long long position)

    cdef _open_descriptor(self)
