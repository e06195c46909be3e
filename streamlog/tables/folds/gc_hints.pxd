# What gc_hints.py stands for, in C.
cdef extern from "Python.h":
    void leave_out "PyObject_GC_UnTrack" (object obj)
