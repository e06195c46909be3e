# C types of window_fold.py.
cimport cython
from streamlog.records cimport packing
from streamlog.tables.folds.folding cimport Columns, Row
from streamlog.tables.folds cimport prefetch

cdef long long _TIME_MS_MAX
cdef int _AHEAD, _KNOWN, _DONE, _LATE, _GATE, _SOURCE

@cython.final
cdef class Window:
    cdef public long long start_ms
    cdef public long long end_ms
    cdef public object start
    cdef public object end
    cdef public bytes suffix
    cdef public dict rows
    cdef public list dirty
    cdef public bint is_whole

@cython.final
cdef class Arrived:
    cdef readonly list raws
    cdef readonly list values
    cdef readonly list timestamps
    cdef readonly list times
    cdef readonly object sources
    cdef Py_ssize_t cold

@cython.final
cdef class ResultColumns:
    cdef public Py_ssize_t count
    cdef public list ats
    cdef public list raws
    cdef public list windows
    cdef public list values
    cdef public list timestamps
    cdef public list old_values

    cpdef int add(
        self, Py_ssize_t at, object raw, object window, object value, object timestamp_ms
    ) except -1

@cython.locals(
    at=cython.Py_ssize_t, found=dict, end_ms=cython.longlong, start_ms=cython.longlong,
    timestamp_ms=cython.longlong, rows=dict,
)
cpdef list missing_rows(Window window, list raws, list timestamps)

cpdef list keys_below(bytes head, list raws)

@cython.final
cdef class WindowFold:
    cdef object _add
    cdef object _result
    cdef object _initial
    cdef Columns _columns
    cdef object _open_window
    cdef object _load_row
    cdef long long _size_ms
    cdef long long _offset_ms
    cdef long long _start_ms
    cdef long long _end_ms
    cdef long long _step_ms
    cdef object _span_of
    cdef bint _is_atomic
    cdef list _known
    cdef list _near
    cdef list _near_windows
    cdef Py_ssize_t _near_at
    cdef long long _grace_ms
    cdef bint _on_update
    cdef bint _on_commit
    cdef bint _sends_old_values
    cdef public dict windows
    cdef public dict raws
    cdef public long long gate_ms
    cdef public Py_ssize_t at
    cdef public Py_ssize_t dropped_at
    cdef public long long number
    cdef public list touched
    cdef public list touched_windows
    cdef public list touched_old_values

    @cython.locals(
        at=cython.Py_ssize_t, end_ms=cython.longlong, grace_ms=cython.longlong,
        now_ms=cython.longlong, others_ms=cython.longlong, own_ms=cython.longlong, raws=list,
        row=Row, start_ms=cython.longlong, stream_ms=cython.longlong, timestamp_ms=cython.longlong,
        timestamps=list, times=list, values=list, window=Window,
    )
    cpdef int run(
        self, Py_ssize_t start, Arrived arrived, tuple outlook, ResultColumns results
    ) except -1

    @cython.locals(
        offset_ms=cython.longlong, size_ms=cython.longlong, start_ms=cython.longlong,
    )
    cdef int _find(self, long long timestamp_ms) except -1

    @cython.locals(
        at=cython.Py_ssize_t, closed_ms=cython.longlong, first_ms=cython.longlong,
        grace_ms=cython.longlong, have_first_ms=cython.longlong, have_last_ms=cython.longlong,
        last_ms=cython.longlong, now_ms=cython.longlong, others_ms=cython.longlong,
        own_ms=cython.longlong, size_ms=cython.longlong, step_ms=cython.longlong,
        raws=list, stream_ms=cython.longlong, timestamp_ms=cython.longlong, timestamps=list,
        times=list, windows=list,
    )
    cpdef int run_overlapping(
        self, Py_ssize_t start, Arrived arrived, tuple outlook, ResultColumns results
    ) except -1

    @cython.locals(start_ms=cython.longlong, found=list)
    cdef list _windows_from(self, long long first_ms, long long last_ms)

    @cython.locals(window=Window)
    cdef int _warm(self, list windows, Arrived arrived) except -1

    @cython.locals(
        at=cython.Py_ssize_t, index=cython.Py_ssize_t, row=Row, timestamp_ms=cython.longlong,
        window=Window,
    )
    cdef int _fold_all(
        self, list windows, Arrived arrived, ResultColumns results, long long stream_ms
    ) except -1

    cdef int _note_old(self, Row row, object old_value, ResultColumns results) except -1

    cdef int _mark_changed(self, Window window, Row row, long long timestamp_ms) except -1

    @cython.locals(index=cython.Py_ssize_t)
    cdef Window _window_near(self, Py_ssize_t at)

    @cython.locals(at=cython.Py_ssize_t, dicts=list, row=Row)
    cdef Row _row_near(self, Window window, Arrived arrived)

    @cython.locals(
        at=cython.Py_ssize_t, dicts=list, other=Window, timestamp_ms=cython.longlong,
        timestamps=list, windows=list,
    )
    cdef list _windows_ahead(self, Window window, Arrived arrived)

    @cython.locals(known=list, number=cython.longlong, other=Window, window=Window)
    cdef Window _known_window(self, long long timestamp_ms)

    @cython.locals(found=Row)
    cdef Row _row(self, Window window, object raw)

    cdef Window _window(self, long long start_ms, long long end_ms)

    cdef int _fold(
        self, Window window, Row row, object value, long long timestamp_ms, ResultColumns results
    ) except -1

    cdef object _result_of(self, Row row)

    cpdef object result(self, Row row)

    @cython.locals(columns=Columns, row=Row)
    cdef Row _new_row(self, Window window, object raw)

    cdef int _touch(self, Window window, Row row, long long time_ms) except -1

    @cython.locals(at=cython.Py_ssize_t, timestamp_ms=object)
    cdef int _note(self, ResultColumns results, Window window, Row row, Arrived arrived) except -1
