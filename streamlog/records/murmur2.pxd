# C types of murmur2.py: 64 bits without a sign, so that a product of two 32-bit numbers fits.
cimport cython

cdef unsigned long long _MASK, _MULTIPLIER, _SEED, _POSITIVE

cpdef unsigned long long murmur2(bytes data) except? 0

@cython.locals(
    at=cython.Py_ssize_t, end=cython.Py_ssize_t, number=cython.ulonglong, word=cython.ulonglong,
)
cpdef unsigned long long hashed(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t length
) except? 0

@cython.locals(count=cython.ulonglong)
cpdef Py_ssize_t partition_of_key(bytes key, Py_ssize_t partitions) except -1

@cython.locals(
    count=cython.ulonglong, found=list, key=bytes, length=cython.Py_ssize_t,
)
cpdef list partitions_of_keys(object keys, Py_ssize_t partitions, Py_ssize_t tail_bytes=*)
