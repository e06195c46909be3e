# What key_sort.py does, in C.
cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define STREAMLOG_BRING(p) __builtin_prefetch(p)
    #else
    #define STREAMLOG_BRING(p)
    #endif
    #define STREAMLOG_FEW 16 /* entries that are sorted by comparing them */
    #define STREAMLOG_DEPTH_MAX 8 /* times that eight bytes are looked at */
    #define STREAMLOG_SOON 12 /* entries ahead */

    typedef struct {
        unsigned long long head; /* the bytes that are looked at */
        PyObject *key;
        PyObject *value;
    } streamlog_entry;

    static CYTHON_INLINE int streamlog_compare(const void *left, const void *right) {
        PyObject *first = ((const streamlog_entry *)left)->key;
        PyObject *second = ((const streamlog_entry *)right)->key;
        Py_ssize_t own = PyBytes_GET_SIZE(first), other = PyBytes_GET_SIZE(second);
        int order = memcmp(
            PyBytes_AS_STRING(first), PyBytes_AS_STRING(second), (size_t)(own < other ? own : other)
        );
        return order ? order : (own > other) - (own < other);
    }

    /* How many bytes all of them begin with alike. */
    static CYTHON_INLINE Py_ssize_t streamlog_common(const streamlog_entry *entries, Py_ssize_t count) {
        const char *first = PyBytes_AS_STRING(entries[0].key);
        Py_ssize_t common = PyBytes_GET_SIZE(entries[0].key), at, index;
        for (at = 1; at < count; at++) {
            const char *own = PyBytes_AS_STRING(entries[at].key);
            Py_ssize_t size = PyBytes_GET_SIZE(entries[at].key);
            if (at + STREAMLOG_SOON < count) {
                STREAMLOG_BRING(entries[at + STREAMLOG_SOON].key);
                STREAMLOG_BRING((char *)entries[at + STREAMLOG_SOON].key + 64);
            }
            if (size < common) common = size;
            for (index = 0; index < common; index++) if (own[index] != first[index]) break;
            common = index;
        }
        return common;
    }

    /* Eight bytes of a key as a number that compares as they do; zeros behind its end. */
    static CYTHON_INLINE unsigned long long streamlog_head(PyObject *key, Py_ssize_t from) {
        const unsigned char *bytes = (const unsigned char *)PyBytes_AS_STRING(key);
        Py_ssize_t size = PyBytes_GET_SIZE(key), at;
        unsigned long long head = 0;
        for (at = from; at < from + 8; at++) head = head << 8 | (at < size ? bytes[at] : 0);
        return head;
    }

    /* By the heads, from the last of their bytes on; those that are all the same are passed over. */
    static CYTHON_INLINE void streamlog_sort_heads(
        streamlog_entry *entries, streamlog_entry *room, Py_ssize_t count
    ) {
        streamlog_entry *from = entries, *to = room, *turn;
        int shift, digit;
        for (shift = 0; shift < 64; shift += 8) {
            Py_ssize_t starts[257] = {0}, at;
            for (at = 0; at < count; at++) starts[(from[at].head >> shift & 0xff) + 1]++;
            if (starts[(from[0].head >> shift & 0xff) + 1] == count) continue;
            for (digit = 0; digit < 256; digit++) starts[digit + 1] += starts[digit];
            for (at = 0; at < count; at++) to[starts[from[at].head >> shift & 0xff]++] = from[at];
            turn = from;
            from = to;
            to = turn;
        }
        if (from != entries) memcpy(entries, from, (size_t)count * sizeof(streamlog_entry));
    }

    static CYTHON_INLINE void streamlog_sort_entries(
        streamlog_entry *entries, streamlog_entry *room, Py_ssize_t count, int depth
    ) {
        Py_ssize_t common, at, start;
        if (count <= STREAMLOG_FEW || depth == STREAMLOG_DEPTH_MAX) {
            qsort(entries, (size_t)count, sizeof(streamlog_entry), streamlog_compare);
            return;
        }
        common = streamlog_common(entries, count);
        for (at = 0; at < count; at++) entries[at].head = streamlog_head(entries[at].key, common);
        streamlog_sort_heads(entries, room, count);
        for (start = 0; start < count; start = at) {
            for (at = start + 1; at < count && entries[at].head == entries[start].head;) at++;
            if (at - start > 1) streamlog_sort_entries(entries + start, room, at - start, depth + 1);
        }
    }

    static CYTHON_INLINE int streamlog_sort_by_key(PyObject *keys, PyObject *values) {
        Py_ssize_t count = PyList_GET_SIZE(keys), at;
        streamlog_entry *entries;
        if (PyList_GET_SIZE(values) != count) {
            PyErr_SetString(PyExc_ValueError, "there is not one value for each key");
            return -1;
        }
        for (at = 0; at < count; at++) {
            if (at + STREAMLOG_SOON < count) {
                STREAMLOG_BRING(PyList_GET_ITEM(keys, at + STREAMLOG_SOON));
                STREAMLOG_BRING((char *)PyList_GET_ITEM(keys, at + STREAMLOG_SOON) + 64);
            }
            if (!PyBytes_Check(PyList_GET_ITEM(keys, at))) {
                PyErr_SetString(PyExc_TypeError, "keys are bytes");
                return -1;
            }
        }
        if (count < 2) return 0;
        entries = (streamlog_entry *)PyMem_Malloc((size_t)count * 2 * sizeof(streamlog_entry));
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        for (at = 0; at < count; at++) {
            entries[at].key = PyList_GET_ITEM(keys, at);
            entries[at].value = PyList_GET_ITEM(values, at);
        }
        streamlog_sort_entries(entries, entries + count, count, 0);
        for (at = 0; at < count; at++) {
            PyList_SET_ITEM(keys, at, entries[at].key);
            PyList_SET_ITEM(values, at, entries[at].value);
        }
        PyMem_Free(entries);
        return 0;
    }

    /* Who is where is a matter of pointers: no object is looked at. */
    static CYTHON_INLINE Py_ssize_t streamlog_next_index(
        PyObject *own, Py_ssize_t start, PyObject *keys, Py_ssize_t at
    ) {
        PyObject *key = PyList_GET_ITEM(keys, at);
        Py_ssize_t stop = start + 16, index;
        if (stop > PyList_GET_SIZE(own)) stop = PyList_GET_SIZE(own);
        for (index = start; index < stop; index++)
            if (PyList_GET_ITEM(own, index) == key) return index;
        return -1;
    }
    """
    int sort_by_key "streamlog_sort_by_key" (list keys, list values) except -1
    Py_ssize_t next_index "streamlog_next_index" (
        list own, Py_ssize_t start, list keys, Py_ssize_t at
    )
