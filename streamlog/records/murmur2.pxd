# C types of murmur2.py: 64 bits without a sign, so that a product of two 32-bit numbers fits.
cimport cython

cdef unsigned long long _MASK, _MULTIPLIER, _SEED, _POSITIVE

@cython.locals(
    at=cython.Py_ssize_t, hashed=cython.ulonglong, length=cython.Py_ssize_t,
    view=cython.p_const_uchar, whole=cython.Py_ssize_t, word=cython.ulonglong,
)
cpdef unsigned long long murmur2(bytes data) except? 0

@cython.locals(count=cython.ulonglong)
cpdef list partitions_of_keys(object keys, Py_ssize_t partitions)
