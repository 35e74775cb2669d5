/* The quick part of a timed lock: lock_core.py in C, method by method. See there for what it does, and why.

   Built by `python -m probes.build` against the stable ABI of CPython 3.11, so that one library serves all later versions. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stddef.h>
#include <structmember.h>

#define UNKNOWN_NS (-1)

typedef struct SiteCore SiteCore;

typedef struct {
    PyObject_HEAD
    PyObject *acquire, *release, *locked, *clock_ns, *waiters;
    SiteCore *holder;
    long long taken_ns, probe_errors;
    unsigned long owner;
    Py_ssize_t depth;
    char reentrant;
} LockCore;

struct SiteCore {
    PyObject_HEAD
    LockCore *lock;
    Py_ssize_t num_bounds;
    long long *bounds;
    long long *hold_counts; /* one more than bounds */
    long long uncontended, last_wait_ns, last_hold_ns, hold_sum_ns;
};

static PyObject *lock_core_type; /* never released: the module lives as long as the process */

static void release_memory(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* ---- LockCore */

static int lock_init(PyObject *op, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"raw", "clock_ns", "reentrant", "waiters", NULL};
    LockCore *self = (LockCore *)op;
    PyObject *raw, *clock_ns, *waiters;
    int reentrant;
    if (self->acquire != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a lock is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOpO!", names, &raw, &clock_ns, &reentrant, &PySet_Type, &waiters))
        return -1;
    self->clock_ns = Py_NewRef(clock_ns);
    self->waiters = Py_NewRef(waiters);
    self->reentrant = (char)reentrant;
    self->taken_ns = UNKNOWN_NS;
    self->release = PyObject_GetAttrString(raw, "release");
    self->locked = PyObject_GetAttrString(raw, "locked");
    self->acquire = PyObject_GetAttrString(raw, "acquire");
    return self->acquire == NULL || self->release == NULL || self->locked == NULL ? -1 : 0;
}

static int lock_traverse(PyObject *op, visitproc visit, void *arg) {
    LockCore *self = (LockCore *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->acquire);
    Py_VISIT(self->release);
    Py_VISIT(self->locked);
    Py_VISIT(self->clock_ns);
    Py_VISIT(self->waiters);
    Py_VISIT((PyObject *)self->holder);
    return 0;
}

static int lock_clear(PyObject *op) {
    LockCore *self = (LockCore *)op;
    Py_CLEAR(self->acquire);
    Py_CLEAR(self->release);
    Py_CLEAR(self->locked);
    Py_CLEAR(self->clock_ns);
    Py_CLEAR(self->waiters);
    Py_CLEAR(self->holder);
    return 0;
}

static void lock_dealloc(PyObject *op) {
    PyObject_GC_UnTrack(op);
    lock_clear(op);
    release_memory(op);
}

/* A fault of the bookkeeping is counted, and the engine goes on. -1 with the error set for what is no fault: an interrupt. */
static int count_fault(LockCore *lock) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear();
    lock->probe_errors++;
    return 0;
}

/* 1 with the time, or 0 when the clock failed, which is counted, or -1. */
static int read_clock(LockCore *lock, long long *now_ns) {
    PyObject *answer = PyObject_CallNoArgs(lock->clock_ns);
    if (answer == NULL) return count_fault(lock);
    *now_ns = PyLong_AsLongLong(answer);
    Py_DECREF(answer);
    return *now_ns == -1 && PyErr_Occurred() ? count_fault(lock) : 1;
}

/* ---- SiteCore */

static int site_init(PyObject *op, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"lock", "bounds", NULL};
    SiteCore *self = (SiteCore *)op;
    PyObject *lock, *bounds;
    if (self->lock != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a site is made once");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!", names, lock_core_type, &lock, &PyTuple_Type, &bounds)) return -1;
    if (((LockCore *)lock)->acquire == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the lock of a site is made before the site");
        return -1;
    }
    const Py_ssize_t count = PyTuple_Size(bounds);
    PyMem_Free(self->bounds); /* of an attempt that failed */
    self->bounds = PyMem_Calloc((size_t)(2 * count + 1), sizeof(long long));
    if (self->bounds == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->hold_counts = self->bounds + count;
    self->num_bounds = count;
    for (Py_ssize_t i = 0; i < count; ++i) {
        self->bounds[i] = PyLong_AsLongLong(PyTuple_GetItem(bounds, i));
        if (self->bounds[i] == -1 && PyErr_Occurred()) return -1;
    }
    self->lock = (LockCore *)Py_NewRef(lock);
    return 0;
}

static int site_traverse(PyObject *op, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(op));
    Py_VISIT((PyObject *)((SiteCore *)op)->lock);
    return 0;
}

static int site_clear(PyObject *op) {
    Py_CLEAR(((SiteCore *)op)->lock);
    return 0;
}

static void site_dealloc(PyObject *op) {
    PyObject_GC_UnTrack(op);
    site_clear(op);
    PyMem_Free(((SiteCore *)op)->bounds);
    release_memory(op);
}

static PyObject *site_hold_counts(PyObject *op, PyObject *Py_UNUSED(none)) {
    SiteCore *self = (SiteCore *)op;
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i <= self->num_bounds && self->bounds != NULL; ++i) {
        PyObject *count = PyLong_FromLongLong(self->hold_counts[i]);
        if (count == NULL || PyList_Append(list, count) < 0) Py_CLEAR(list);
        Py_XDECREF(count);
    }
    return list;
}

static void book_hold(SiteCore *site, long long held_ns) {
    Py_ssize_t low = 0, high = site->num_bounds;
    while (low < high) {
        const Py_ssize_t middle = (low + high) / 2;
        if (site->bounds[middle] < held_ns)
            low = middle + 1;
        else
            high = middle;
    }
    site->hold_counts[low]++;
    site->hold_sum_ns += held_ns;
    site->last_hold_ns = held_ns;
}

/* 0 when the lock is taken, -1 with an error when it is not. */
static int take(SiteCore *site) {
    LockCore *lock = site->lock;
    PyObject *answer = PyObject_CallNoArgs(lock->locked);
    if (answer == NULL) return -1;
    const int is_free = answer == Py_False;
    Py_DECREF(answer);
    /* A free lock stays free until it is asked for here: no other thread runs Python meanwhile, and acquire() only lets go of
       the interpreter when it has to wait. Asking so is cheaper than acquire(False), which parses its argument. */
    answer = is_free ? PyObject_CallNoArgs(lock->acquire) : PyObject_CallMethod((PyObject *)site, "wait_for_lock", NULL);
    if (answer == NULL) return -1;
    Py_DECREF(answer);
    if (is_free) {
        site->uncontended++;
        site->last_wait_ns = 0;
    }
    return 0;
}

static PyObject *site_enter(PyObject *op, PyObject *Py_UNUSED(none)) {
    SiteCore *self = (SiteCore *)op;
    LockCore *lock = self->lock;
    if (lock == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a site without a lock");
        return NULL;
    }
    const unsigned long me = lock->reentrant ? PyThread_get_thread_ident() : 0;
    if (lock->reentrant && lock->owner == me) {
        lock->depth++;
        return Py_NewRef(op);
    }
    if (take(self) < 0) return NULL;
    if (lock->holder != self) {
        PyObject *before = (PyObject *)lock->holder;
        lock->holder = (SiteCore *)Py_NewRef(op);
        Py_XDECREF(before);
    }
    lock->owner = me;
    lock->depth = 1;
    if (read_clock(lock, &lock->taken_ns) == 1) return Py_NewRef(op);
    lock->taken_ns = UNKNOWN_NS;
    if (!PyErr_Occurred()) return Py_NewRef(op);
    return NULL;
}

static PyObject *site_exit(PyObject *op, PyObject *const *Py_UNUSED(args), Py_ssize_t Py_UNUSED(count)) {
    LockCore *lock = ((SiteCore *)op)->lock;
    if (lock == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a site without a lock");
        return NULL;
    }
    if (lock->reentrant) {
        if (--lock->depth > 0) Py_RETURN_NONE;
        lock->owner = 0;
    }
    long long now_ns;
    int went = read_clock(lock, &now_ns);
    if (went == 1) {
        SiteCore *site = lock->holder;
        if (site != NULL && lock->taken_ns != UNKNOWN_NS) book_hold(site, now_ns - lock->taken_ns);
        if (PySet_Size(lock->waiters) > 0) {
            PyObject *holder = site == NULL ? Py_None : (PyObject *)site;
            PyObject *told = PyObject_CallMethod((PyObject *)lock, "tell_waiters", "OL", holder, now_ns);
            if (told == NULL) went = count_fault(lock);
            Py_XDECREF(told);
        }
    }
    /* Given back whatever happened; an interrupt meanwhile is passed on after that. */
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyObject *released = PyObject_CallNoArgs(lock->release);
    if (released == NULL) {
        Py_XDECREF(kind);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return NULL;
    }
    if (went >= 0) return released;
    Py_DECREF(released);
    PyErr_Restore(kind, error, trace);
    return NULL;
}

/* ---- The module */

static PyMemberDef lock_members[] = {
    {"acquire", T_OBJECT, offsetof(LockCore, acquire), READONLY, NULL},
    {"release", T_OBJECT, offsetof(LockCore, release), READONLY, NULL},
    {"locked", T_OBJECT, offsetof(LockCore, locked), READONLY, NULL},
    {"clock_ns", T_OBJECT, offsetof(LockCore, clock_ns), READONLY, NULL},
    {"waiters", T_OBJECT, offsetof(LockCore, waiters), READONLY, NULL},
    {"holder", T_OBJECT, offsetof(LockCore, holder), READONLY, NULL},
    {"taken_ns", T_LONGLONG, offsetof(LockCore, taken_ns), READONLY, NULL},
    {"probe_errors", T_LONGLONG, offsetof(LockCore, probe_errors), 0, NULL},
    {"owner", T_ULONG, offsetof(LockCore, owner), 0, NULL},
    {"depth", T_PYSSIZET, offsetof(LockCore, depth), 0, NULL},
    {"reentrant", T_BOOL, offsetof(LockCore, reentrant), READONLY, NULL},
    {NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_new, PyType_GenericNew},   {Py_tp_init, lock_init},   {Py_tp_dealloc, lock_dealloc},
    {Py_tp_traverse, lock_traverse}, {Py_tp_clear, lock_clear}, {Py_tp_members, lock_members},
    {0, NULL},
};

static PyMemberDef site_members[] = {
    {"lock", T_OBJECT, offsetof(SiteCore, lock), READONLY, NULL},
    {"uncontended", T_LONGLONG, offsetof(SiteCore, uncontended), READONLY, NULL},
    {"last_wait_ns", T_LONGLONG, offsetof(SiteCore, last_wait_ns), 0, NULL},
    {"last_hold_ns", T_LONGLONG, offsetof(SiteCore, last_hold_ns), READONLY, NULL},
    {"hold_sum_ns", T_LONGLONG, offsetof(SiteCore, hold_sum_ns), READONLY, NULL},
    {NULL},
};

static PyMethodDef site_methods[] = {
    {"__enter__", site_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))site_exit, METH_FASTCALL, NULL},
    {"hold_counts", site_hold_counts, METH_NOARGS, NULL},
    {NULL},
};

static PyType_Slot site_slots[] = {
    {Py_tp_new, PyType_GenericNew},   {Py_tp_init, site_init},   {Py_tp_dealloc, site_dealloc},
    {Py_tp_traverse, site_traverse}, {Py_tp_clear, site_clear}, {Py_tp_members, site_members},
    {Py_tp_methods, site_methods},   {0, NULL},
};

#define FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC)
static PyType_Spec lock_spec = {"probes._lock_core.LockCore", sizeof(LockCore), 0, FLAGS, lock_slots};
static PyType_Spec site_spec = {"probes._lock_core.SiteCore", sizeof(SiteCore), 0, FLAGS, site_slots};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_lock_core", NULL, -1};

PyMODINIT_FUNC PyInit__lock_core(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *site_core_type = PyType_FromSpec(&site_spec);
    lock_core_type = PyType_FromSpec(&lock_spec);
    if (module == NULL || lock_core_type == NULL || site_core_type == NULL ||
        PyModule_AddObjectRef(module, "LockCore", lock_core_type) < 0 ||
        PyModule_AddObjectRef(module, "SiteCore", site_core_type) < 0 ||
        PyModule_AddStringConstant(module, "SOURCE", STALLSCOPE_SOURCE) < 0) {
        Py_XDECREF(module);
        return NULL;
    }
    Py_DECREF(site_core_type);
    return module;
}
