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

    /* Where a dictionary would look for these keys first. Its layout is nobody's to know, and here
       it is only a hint: what is asked to come near is not read. Without it, lookups just wait. */
    #if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
    #define STREAMLOG_KNOWS_DICTIONARIES
    #ifndef Py_BUILD_CORE
    #define Py_BUILD_CORE
    #endif
    #include "internal/pycore_dict.h"
    #endif
    static CYTHON_INLINE void streamlog_warm_keys(
        PyObject *rows, PyObject *const *raws, Py_ssize_t count
    ) {
    #ifdef STREAMLOG_KNOWS_DICTIONARIES
        PyDictKeysObject *keys = ((PyDictObject *)rows)->ma_keys;
        size_t slots[STREAMLOG_AHEAD], mask = ((size_t)1 << keys->dk_log2_size) - 1;
        Py_ssize_t at;
        int width = keys->dk_log2_index_bytes - keys->dk_log2_size;
        if (keys->dk_kind != DICT_KEYS_GENERAL || ((PyDictObject *)rows)->ma_used < 4096) return;
        for (at = 0; at < count; at++) {
            slots[at] = (size_t)PyObject_Hash(raws[at]) & mask;
            STREAMLOG_PREFETCH(keys->dk_indices + (slots[at] << width));
        }
        for (at = 0; at < count; at++) {
            Py_ssize_t place = width == 1 ? ((const int16_t *)keys->dk_indices)[slots[at]]
                             : width == 2 ? ((const int32_t *)keys->dk_indices)[slots[at]] : -1;
            slots[at] = place < 0 ? 0 : (size_t)place;
            STREAMLOG_PREFETCH(DK_ENTRIES(keys) + slots[at]);
        }
        for (at = 0; at < count; at++) {
            STREAMLOG_PREFETCH(DK_ENTRIES(keys)[slots[at]].me_key);
            STREAMLOG_PREFETCH(DK_ENTRIES(keys)[slots[at]].me_value);
        }
    #endif
    }

    /* As many of the keys from `start` on as are worth it. */
    static CYTHON_INLINE void streamlog_warm_listed(
        PyObject *rows, PyObject *raws, Py_ssize_t start, Py_ssize_t stop
    ) {
        Py_ssize_t at;
        for (at = start; at < stop; at++)
            if (!PyBytes_CheckExact(PyList_GET_ITEM(raws, at))) return;
        streamlog_warm_keys(rows, ((PyListObject *)raws)->ob_item + start, stop - start);
    }

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
        streamlog_warm_listed(rows, raws, start, stop);
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

    static CYTHON_INLINE void streamlog_warm_slots(
        PyObject *rows, PyObject *keys, Py_ssize_t start
    ) {
        Py_ssize_t stop = start + STREAMLOG_AHEAD;
        if (stop > PyList_GET_SIZE(keys)) stop = PyList_GET_SIZE(keys);
        streamlog_warm_listed(rows, keys, start, stop);
    }

    static CYTHON_INLINE PyObject *streamlog_warmed(
        PyObject *rows, PyObject *raws, Py_ssize_t start
    ) {
        PyObject *found[STREAMLOG_AHEAD], *all;
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at, count = 0;
        if (stop > PyList_GET_SIZE(raws)) stop = PyList_GET_SIZE(raws);
        all = PyList_New(stop - start);
        if (all == NULL) return NULL;
        streamlog_warm_listed(rows, raws, start, stop);
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
    void warm_slots "streamlog_warm_slots" (dict rows, list keys, Py_ssize_t start)
    void warm_rows "streamlog_warm_rows" (list rows, Py_ssize_t start)
    list warmed "streamlog_warmed" (dict rows, list raws, Py_ssize_t start)
