# C types of event_loop.py: those of a look for events.
cimport cython

cdef int _READ, _WRITE, _NOT_IN, _NOT_OUT

@cython.locals(event=cython.int, found=list, mask=cython.int)
cdef list _ready(object epoll, dict keys, object timeout)
