# C types of plain_values.py.
cimport cython
from streamlog.records cimport packing

cdef int DEPTH_MAX

cpdef object copied(object value)

cdef object _copied(object value, int depth)

@cython.locals(found=dict)
cdef object _copied_dict(dict value, int depth)

@cython.locals(found=list)
cdef object _copied_list(list value, int depth)
