# What prefetch.py stands for, in C. A row's fields are those of a Row (folding.pxd), in its order; what
# would not be there is only asked to come near, and not read.
cdef extern from *:
    """
    #define STREAMLOG_AHEAD 16
    /* A function that does nothing else has no effect for gcc, which leaves it out: hence the asm. */
    #if defined(__GNUC__) || defined(__clang__)
    #define STREAMLOG_PREFETCH(p) do { __builtin_prefetch(p); __asm__ volatile(""); } while (0)
    #else
    #define STREAMLOG_PREFETCH(p)
    #endif
    typedef struct {
        PyObject_HEAD
        PyObject *kept;
        long long timestamp_ms;
        int width, dirty, touched;
        long long numbers[4];
        PyObject *raw, *key;
    } streamlog_row_head;

    /* Where a dictionary would look for these keys first. Its layout is nobody's to know, and here
       it is only a hint: what is asked to come near is not read. Without it, lookups just wait. */
    #if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && !defined(Py_GIL_DISABLED)
    #define STREAMLOG_KNOWS_DICTIONARIES
    #ifndef Py_BUILD_CORE
    #define Py_BUILD_CORE
    #endif
    #undef _PyGC_FINALIZED  /* Python.h's: the next header has a function of this name */
    #include "internal/pycore_dict.h"
    #endif
    static CYTHON_INLINE int streamlog_is_worth_it(PyObject *rows) {
    #ifdef STREAMLOG_KNOWS_DICTIONARIES
        return PyDict_CheckExact(rows) && ((PyDictObject *)rows)->ma_used >= 4096
            && ((PyDictObject *)rows)->ma_keys->dk_kind == DICT_KEYS_GENERAL;
    #else
        return 0;
    #endif
    }

    #ifdef STREAMLOG_KNOWS_DICTIONARIES
    static CYTHON_INLINE const void *streamlog_place(PyDictKeysObject *keys, size_t slot) {
        return keys->dk_indices + (slot << (keys->dk_log2_index_bytes - keys->dk_log2_size));
    }

    /* Which entry a slot leads to; the first if none, or if they are too many to be told. */
    static CYTHON_INLINE Py_ssize_t streamlog_entry_at(PyDictKeysObject *keys, size_t slot) {
        int width = keys->dk_log2_index_bytes - keys->dk_log2_size;
        Py_ssize_t place = width == 1 ? ((const int16_t *)keys->dk_indices)[slot]
                         : width == 2 ? ((const int32_t *)keys->dk_indices)[slot] : 0;
        return place < 0 ? 0 : place;
    }
    #endif

    /* Each key in the dictionary beside it. */
    static CYTHON_INLINE void streamlog_warm_keys(
        PyObject *const *dicts, PyObject *const *raws, Py_ssize_t count
    ) {
    #ifdef STREAMLOG_KNOWS_DICTIONARIES
        PyDictKeysObject *keys[STREAMLOG_AHEAD];
        size_t hashes[STREAMLOG_AHEAD], slots[STREAMLOG_AHEAD], masks[STREAMLOG_AHEAD];
        Py_ssize_t places[STREAMLOG_AHEAD], at, kept = 0;
        for (at = 0; at < count; at++) {
            PyDictKeysObject *own;
            if (!streamlog_is_worth_it(dicts[at]) || !PyBytes_CheckExact(raws[at])) continue;
            own = ((PyDictObject *)dicts[at])->ma_keys;
            hashes[kept] = (size_t)PyObject_Hash(raws[at]);
            masks[kept] = ((size_t)1 << own->dk_log2_size) - 1;
            slots[kept] = hashes[kept] & masks[kept];
            STREAMLOG_PREFETCH(streamlog_place(own, slots[kept]));
            keys[kept++] = own;
        }
        for (at = 0; at < kept; at++) {
            places[at] = streamlog_entry_at(keys[at], slots[at]);
            STREAMLOG_PREFETCH(DK_ENTRIES(keys[at]) + places[at]);
        }
        /* Another key may be there: then it is where a dictionary looks next. */
        for (at = 0; at < kept; at++) {
            if ((size_t)DK_ENTRIES(keys[at])[places[at]].me_hash == hashes[at]) continue;
            slots[at] = (slots[at] * 5 + (hashes[at] >> 5) + 1) & masks[at];
            places[at] = streamlog_entry_at(keys[at], slots[at]);
            STREAMLOG_PREFETCH(DK_ENTRIES(keys[at]) + places[at]);
        }
        for (at = 0; at < kept; at++) {
            STREAMLOG_PREFETCH(DK_ENTRIES(keys[at])[places[at]].me_key);
            STREAMLOG_PREFETCH(DK_ENTRIES(keys[at])[places[at]].me_value);
        }
    #endif
    }

    static CYTHON_INLINE void streamlog_warm_states(PyObject **found, Py_ssize_t count) {
        Py_ssize_t at, each;
        for (at = 0; at < count; at++) {
            found[at] = ((streamlog_row_head *)found[at])->kept;
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

    /* As many of the keys from `start` on as are worth it, in the same dictionary. */
    static CYTHON_INLINE void streamlog_warm_slots(
        PyObject *rows, PyObject *keys, Py_ssize_t start
    ) {
        PyObject *dicts[STREAMLOG_AHEAD];
        Py_ssize_t count = PyList_GET_SIZE(keys) - start, at;
        if (count > STREAMLOG_AHEAD) count = STREAMLOG_AHEAD;
        for (at = 0; at < count; at++) dicts[at] = rows;
        streamlog_warm_keys(dicts, ((PyListObject *)keys)->ob_item + start, count);
    }

    static CYTHON_INLINE void streamlog_warm(PyObject *rows, PyObject *raws, Py_ssize_t start) {
        PyObject *found[STREAMLOG_AHEAD];
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at, count = 0;
        if (stop > PyList_GET_SIZE(raws)) stop = PyList_GET_SIZE(raws);
        streamlog_warm_slots(rows, raws, start);
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
        PyObject *dicts, PyObject *raws, Py_ssize_t start
    ) {
        PyObject *found[STREAMLOG_AHEAD], *all, **own = ((PyListObject *)dicts)->ob_item;
        Py_ssize_t size = PyList_GET_SIZE(dicts), at, count = 0;
        all = PyList_New(size);
        if (all == NULL) return NULL;
        streamlog_warm_keys(own, ((PyListObject *)raws)->ob_item + start, size);
        for (at = 0; at < size; at++) {
            PyObject *raw = PyList_GET_ITEM(raws, start + at);
            PyObject *row = own[at] != Py_None && PyBytes_CheckExact(raw)
                ? PyDict_GetItemWithError(own[at], raw) : NULL;
            if (row == NULL) row = Py_None;
            Py_INCREF(row);
            PyList_SET_ITEM(all, at, row);
            if (row == Py_None) continue;
            STREAMLOG_PREFETCH((char *)row + 64);
            found[count++] = row;
        }
        streamlog_warm_states(found, count);
        return all;
    }

    static CYTHON_INLINE void streamlog_warm_objects(PyObject *objects, Py_ssize_t start) {
        Py_ssize_t stop = start + STREAMLOG_AHEAD, at;
        if (stop > PyList_GET_SIZE(objects)) stop = PyList_GET_SIZE(objects);
        for (at = start; at < stop; at++) {
            STREAMLOG_PREFETCH(PyList_GET_ITEM(objects, at));
            STREAMLOG_PREFETCH((char *)PyList_GET_ITEM(objects, at) + 64);
        }
    }

    static CYTHON_INLINE void streamlog_warm_rows(PyObject *rows, Py_ssize_t start) {
        PyObject *found[STREAMLOG_AHEAD];
        Py_ssize_t next = start + STREAMLOG_AHEAD, stop = next, end = next + STREAMLOG_AHEAD;
        Py_ssize_t at, count = 0;
        if (stop > PyList_GET_SIZE(rows)) stop = PyList_GET_SIZE(rows);
        if (end > PyList_GET_SIZE(rows)) end = PyList_GET_SIZE(rows);
        for (at = start ? next : 0; at < end; at++) {
            PyObject *row = PyList_GET_ITEM(rows, at);
            STREAMLOG_PREFETCH(row);
            STREAMLOG_PREFETCH((char *)row + 64);
        }
        for (at = start; at < stop; at++) {
            found[count] = PyList_GET_ITEM(rows, at);
            STREAMLOG_PREFETCH(((streamlog_row_head *)found[count])->key);
            count++;
        }
        streamlog_warm_states(found, count);
    }

    /* A dictionary of rows in its order, from about this entry on: first they, then their keys. */
    static CYTHON_INLINE void streamlog_warm_next(PyObject *rows, Py_ssize_t start) {
    #ifdef STREAMLOG_KNOWS_DICTIONARIES
        PyDictKeysObject *keys = ((PyDictObject *)rows)->ma_keys;
        Py_ssize_t at = start + STREAMLOG_AHEAD, stop = start + 3 * STREAMLOG_AHEAD;
        if (!streamlog_is_worth_it(rows)) return;
        if (stop > keys->dk_nentries) stop = keys->dk_nentries;
        for (; at < stop; at++) {
            streamlog_row_head *row = (streamlog_row_head *)DK_ENTRIES(keys)[at].me_value;
            if (row == NULL) continue;
            if (at < start + 2 * STREAMLOG_AHEAD) {
                STREAMLOG_PREFETCH(row->key);
                continue;
            }
            STREAMLOG_PREFETCH(row);
            STREAMLOG_PREFETCH((char *)row + 64);
        }
    #endif
    }
    """
    void warm "streamlog_warm" (dict rows, list raws, Py_ssize_t start)
    void warm_slots "streamlog_warm_slots" (dict rows, list keys, Py_ssize_t start)
    void warm_objects "streamlog_warm_objects" (list objects, Py_ssize_t start)
    void warm_rows "streamlog_warm_rows" (list rows, Py_ssize_t start)
    list warmed "streamlog_warmed" (list dicts, list raws, Py_ssize_t start)
    void warm_next "streamlog_warm_next" (dict rows, Py_ssize_t start)
