# What warming.py stands for, in C. `state` is the first field of a Row (folding.pxd).
cdef extern from *:
    """
    #define STREAMLOG_AHEAD 32
    #if defined(__GNUC__) || defined(__clang__)
    #define STREAMLOG_PREFETCH(p) __builtin_prefetch(p)
    #else
    #define STREAMLOG_PREFETCH(p)
    #endif
    typedef struct {
        PyObject_HEAD
        PyObject *state;
    } streamlog_row_head;

    static CYTHON_INLINE void streamlog_warm_states(PyObject **found, Py_ssize_t count) {
        Py_ssize_t at, each;
        for (at = 0; at < count; at++) {
            found[at] = ((streamlog_row_head *)found[at])->state;
            STREAMLOG_PREFETCH(found[at]);
        }
        for (at = 0; at < count; at++) {
            if (!PyList_CheckExact(found[at])) return;
            STREAMLOG_PREFETCH(((PyListObject *)found[at])->ob_item);
        }
        for (at = 0; at < count; at++)
            for (each = 0; each < PyList_GET_SIZE(found[at]); each++)
                STREAMLOG_PREFETCH(PyList_GET_ITEM(found[at], each));
    }

    static CYTHON_INLINE void streamlog_warm(PyObject *rows, PyObject *raws, Py_ssize_t start) {
        PyObject *found[STREAMLOG_AHEAD];
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at, count = 0;
        if (!PyList_CheckExact(raws)) return;
        if (stop > PyList_GET_SIZE(raws)) stop = PyList_GET_SIZE(raws);
        for (at = start; at < stop; at++) {
            PyObject *raw = PyList_GET_ITEM(raws, at);
            PyObject *row = PyBytes_CheckExact(raw) ? PyDict_GetItemWithError(rows, raw) : NULL;
            if (row == NULL) continue;
            STREAMLOG_PREFETCH(row);
            STREAMLOG_PREFETCH((char *)row + 64);
            found[count++] = row;
        }
        streamlog_warm_states(found, count);
    }

    static CYTHON_INLINE PyObject *streamlog_warmed(
        PyObject *rows, PyObject *raws, Py_ssize_t start
    ) {
        PyObject *found[STREAMLOG_AHEAD], *all;
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at, count = 0;
        if (stop > PyList_GET_SIZE(raws)) stop = PyList_GET_SIZE(raws);
        all = PyList_New(stop - start);
        if (all == NULL) return NULL;
        for (at = start; at < stop; at++) {
            PyObject *raw = PyList_GET_ITEM(raws, at);
            PyObject *row = PyBytes_CheckExact(raw) ? PyDict_GetItemWithError(rows, raw) : NULL;
            if (row == NULL) {
                Py_INCREF(Py_None);
                PyList_SET_ITEM(all, at - start, Py_None);
                continue;
            }
            Py_INCREF(row);
            PyList_SET_ITEM(all, at - start, row);
            STREAMLOG_PREFETCH((char *)row + 64);
            found[count++] = row;
        }
        streamlog_warm_states(found, count);
        return all;
    }

    static CYTHON_INLINE void streamlog_warm_rows(PyObject *rows, Py_ssize_t start) {
        PyObject *found[STREAMLOG_AHEAD];
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at, count = 0;
        if (stop > PyList_GET_SIZE(rows)) stop = PyList_GET_SIZE(rows);
        for (at = start; at < stop; at++) {
            found[count] = PyList_GET_ITEM(rows, at);
            STREAMLOG_PREFETCH(found[count]);
            STREAMLOG_PREFETCH((char *)found[count] + 64);
            count++;
        }
        streamlog_warm_states(found, count);
    }
    """
    void warm "streamlog_warm" (dict rows, object raws, Py_ssize_t start)
    void warm_rows "streamlog_warm_rows" (list rows, Py_ssize_t start)
    list warmed "streamlog_warmed" (dict rows, list raws, Py_ssize_t start)
