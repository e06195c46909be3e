# C types of clock.py.
cimport cython

cdef object _monotonic_ns, _time_ns

cdef class SystemClock:
    cdef long long _start_ms

    @cython.locals(monotonic_ns=cython.longlong)
    cpdef long long now_ms(self) except? -1

    @cython.locals(wall_ns=cython.longlong)
    cpdef long long wall_ms(self) except? -1
