/* The Python face of _batch_read.h and _counted_write.h: arguments in, bytes out, one release of the GIL.
 *
 * _native.pyi has the contracts. While the GIL is released nothing refers to what others could change:
 * the columns are copied into `struct entry`, the paths are held by a tuple of our own, and the
 * destinations are bytes objects that nobody else has seen.
 */
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_batch_read.h"
#include "_counted_write.h"
#include "_locations.h"

/* ---- Arguments -----------------------------------------------------------------------------------*/

enum { DIRFDS, OFFSETS, LENGTHS, EXPECTED, VERIFY, COLUMNS };
static const struct column columns[COLUMNS] = {
    {"dirfds", "i", "int32", 4},     {"offsets", "lq", "int64", 8},  {"lengths", "lq", "int64", 8},
    {"expected", "I", "uint32", 4}, {"verify", "B?", "uint8", 1},
};

/* A job and what Python has to keep alive for it. */
struct call {
    struct job job;
    int columns;      /* how many of the columns the caller has: all, or those up to LENGTHS */
    int copies;       /* whether entries may use mappings and descriptors of their files */
    int opens_none;   /* whether nothing may be waited for */
    PyObject *paths;  /* a tuple of our own: another thread may change the caller's list meanwhile */
    Py_ssize_t total; /* bytes of all entries, and of the prefix before them */
};

static int entries_fill(struct call *call, const Py_buffer *views)
{
    for (Py_ssize_t i = 0; i < call->job.count; i++) {
        struct entry *entry = &call->job.entries[i];
        PyObject *path = PyTuple_GetItem(call->paths, i);
        int64_t offset, length;
        char *text;
        Py_ssize_t bytes;
        if (Py_TYPE(path) == StoredFileType) {
            entry->file = path;
            path = ((StoredFile *)path)->path;
        } else if (!PyBytes_Check(path)) {
            PyErr_Format(PyExc_TypeError, "paths[%zd] must be bytes, not %R", i, Py_TYPE(path));
            return -1;
        }
        PyBytes_AsStringAndSize(path, &text, &bytes);
        entry->path = text;
        if (strlen(text) != (size_t)bytes) {
            PyErr_Format(PyExc_ValueError, "paths[%zd] contains a NUL byte", i);
            return -1;
        }
        memcpy(&entry->dirfd, (const char *)views[DIRFDS].buf + 4 * i, 4);
        memcpy(&offset, (const char *)views[OFFSETS].buf + 8 * i, 8);
        memcpy(&length, (const char *)views[LENGTHS].buf + 8 * i, 8);
        if (call->columns == COLUMNS) {
            memcpy(&entry->expected, (const char *)views[EXPECTED].buf + 4 * i, 4);
            entry->verify = ((const uint8_t *)views[VERIFY].buf)[i];
        }
        if (offset < 0 || length < 0 || offset > INT64_MAX - length) {
            PyErr_Format(PyExc_ValueError, "entry %zd: offset %lld and length %lld are not a range of a file", i,
                         (long long)offset, (long long)length);
            return -1;
        }
        if (length > PY_SSIZE_T_MAX - call->total) {
            PyErr_SetString(PyExc_ValueError, "the lengths add up to more than an object can hold");
            return -1;
        }
        call->total += (Py_ssize_t)length;
        entry->offset = (off_t)offset;
        entry->length = (size_t)length;
        entry->fd = -1;
        entry->folder = entry->dirfd;
        entry->kept = -1;
    }
    return 0;
}

/* Take from the files what they have of their entries: until files_done, nobody unmaps or closes it. */
static void files_use(struct call *call, int may_copy)
{
    TABLES_LOCK();
    call->copies = may_copy && faults_are_caught();
    for (Py_ssize_t i = 0; i < call->job.count; i++) {
        struct entry *entry = &call->job.entries[i];
        if (call->copies && entry->file) {
            entry->mapped = stored_file_bytes(entry->file, call->opens_none ? -1 : entry->folder, entry->offset,
                                              (int64_t)entry->length, &entry->kept);
            call->job.mapped |= entry->mapped != NULL;
            if (entry->kept >= 0)
                entry->path = "", entry->dirfd = entry->kept;
        }
        entry->same = i && entry[-1].dirfd == entry->dirfd
            && (entry[-1].path == entry->path || !strcmp(entry[-1].path, entry->path));
    }
    TABLES_UNLOCK();
}

/* Copies (dirfds, paths, offsets, lengths, expected, verify), or the first four of them, into the job. */
static int call_open(struct call *call, PyObject *const *args, int all)
{
    PyObject *const sources[COLUMNS] = {args[0], args[2], args[3], all ? args[4] : NULL, all ? args[5] : NULL};
    Py_buffer views[COLUMNS];
    int opened = 0, result = -1;
    if (!PyList_Check(args[1]) && !PyTuple_Check(args[1])) {
        PyErr_Format(PyExc_TypeError, "paths must be a list of bytes, not %R", Py_TYPE(args[1]));
        return -1;
    }
    call->columns = all ? COLUMNS : EXPECTED;
    call->paths = PySequence_Tuple(args[1]);
    if (!call->paths)
        return -1;
    call->job.count = PyTuple_Size(call->paths);
    call->job.entries = PyMem_Calloc((size_t)call->job.count, sizeof *call->job.entries);
    if (!call->job.entries) {
        PyErr_NoMemory();
        return -1;
    }
    while (opened < call->columns
           && column_open(&columns[opened], sources[opened], PyBUF_RECORDS_RO, &views[opened], call->job.count) == 0)
        opened++;
    if (opened == call->columns && (result = entries_fill(call, views)) == 0)
        files_use(call, all);
    while (opened)
        PyBuffer_Release(&views[--opened]);
    return result;
}

/* Tell the files what became of their entries. */
static void files_done(struct call *call, int is_run)
{
    static int faulted_before; /* a page that the kernel had to look for twice counts as a fault: one job is forgiven */
    const struct job *job = &call->job;
    TABLES_LOCK();
    const int faulted = job->faulted && (job->waited || faulted_before);
    if (is_run) {
        keeps_open = !job->waited && !faulted;
        faulted_before = job->faulted;
    }
    for (Py_ssize_t i = 0; job->entries && i < job->count; i++) {
        const struct entry *entry = &job->entries[i];
        const int is_used = call->copies && (entry->mapped || entry->kept >= 0);
        if (entry->file && (is_run || is_used))
            stored_file_done(entry->file, entry->folder, is_used, is_run ? (int64_t)entry->length : -1,
                             job->waited || job->code, faulted);
    }
    TABLES_UNLOCK();
}

/* Runs the job without the GIL and frees it; gives `result` (stolen; NULL: only free) or the failure. */
static PyObject *call_run(struct call *call, PyObject *result)
{
    struct job *job = &call->job;
    const int is_run = result != NULL;
    if (result) {
        Py_BEGIN_ALLOW_THREADS
        job_read(job);
        Py_END_ALLOW_THREADS
        if (job->code) {
            Py_DECREF(result);
            result = Py_BuildValue("nii", (Py_ssize_t)job->failed_at, job->code, job->error);
        }
    }
    files_done(call, is_run);
    PyMem_Free(job->entries);
    Py_XDECREF(call->paths);
    return result;
}

static PyObject *read_frame(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    struct call call = {0};
    struct job *job = &call.job;
    Py_buffer prefix;
    PyObject *frame = NULL;
    if (nargs != 8 && nargs != 9)
        return PyErr_Format(PyExc_TypeError, "read_frame takes 8 or 9 positional arguments, got %zd", nargs);
    if (nargs == 9 && (!PyByteArray_Check(args[8]) || !PyByteArray_Size(args[8])))
        return PyErr_Format(PyExc_TypeError, "waited must be a bytearray of at least one byte, not %R", args[8]);
    const Py_ssize_t checksum_at = PyNumber_AsSsize_t(args[1], PyExc_ValueError);
    if (checksum_at == -1 && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(args[0], &prefix, PyBUF_SIMPLE) < 0)
        return NULL;
    call.total = prefix.len;
    if (call_open(&call, args + 2, 1) == 0) {
        if (checksum_at >= 0 && (checksum_at > prefix.len || (prefix.len - checksum_at) / 4 < job->count))
            PyErr_Format(PyExc_ValueError, "%zd checksums at %zd do not fit in a prefix of %zd bytes",
                         (Py_ssize_t)job->count, checksum_at, prefix.len);
        else
            frame = PyBytes_FromStringAndSize(NULL, call.total);
    }
    if (frame) {
        uint8_t *const start = (uint8_t *)PyBytes_AsString(frame);
        uint8_t *dest = start + prefix.len;
        memcpy(start, prefix.buf, (size_t)prefix.len);
        for (Py_ssize_t i = 0; i < job->count; dest += job->entries[i++].length)
            job->entries[i].dest = dest;
        job->sums = checksum_at >= 0 ? start + checksum_at : NULL;
    }
    PyBuffer_Release(&prefix);
    frame = call_run(&call, frame);
    if (nargs == 9 && job->waited && PyByteArray_Size(args[8]))
        PyByteArray_AsString(args[8])[0] = 1;
    return frame;
}

/* Opens a call whose pieces go into a target of the caller, from args[1] on to its end. */
static int target_open(struct call *call, Py_buffer *target, PyObject *const *args)
{
    struct job *job = &call->job;
    const Py_ssize_t first_byte = PyNumber_AsSsize_t(args[1], PyExc_ValueError);
    if (first_byte == -1 && PyErr_Occurred())
        return -1;
    if (PyObject_GetBuffer(args[0], target, PyBUF_WRITABLE) < 0)
        return -1;
    if (call_open(call, args + 2, 1) < 0)
        goto failed;
    if (first_byte < 0 || first_byte > target->len || target->len - first_byte != call->total) {
        PyErr_Format(PyExc_ValueError, "%zd bytes from %zd do not fill a target of %zd bytes", call->total, first_byte,
                     target->len);
        goto failed;
    }
    uint8_t *dest = (uint8_t *)target->buf + first_byte;
    for (Py_ssize_t i = 0; i < job->count; dest += job->entries[i++].length)
        job->entries[i].dest = dest;
    return 0;
failed:
    call_run(call, NULL);
    PyBuffer_Release(target);
    return -1;
}

static PyObject *read_into(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    struct call call = {0};
    Py_buffer target;
    if (nargs != 9 || !PyByteArray_Check(args[8]) || !PyByteArray_Size(args[8]))
        return PyErr_Format(PyExc_TypeError, "read_into takes 9 positional arguments, the last a bytearray of a byte");
    if (target_open(&call, &target, args) < 0)
        return NULL;
    PyObject *const result = call_run(&call, Py_NewRef(Py_None));
    PyBuffer_Release(&target);
    if (call.job.waited && PyByteArray_Size(args[8]))
        PyByteArray_AsString(args[8])[0] = 1;
    return result;
}

static PyObject *copy_into(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    struct call call = {0};
    struct job *job = &call.job;
    Py_buffer target;
    int whole = 1;
    call.opens_none = 1;
    if (nargs != 8)
        return PyErr_Format(PyExc_TypeError, "copy_into takes 8 positional arguments, got %zd", nargs);
    if (target_open(&call, &target, args) < 0)
        return NULL;
    for (Py_ssize_t i = 0; whole && i < job->count; i++)
        whole = job->entries[i].mapped != NULL;
    if (whole) {
        Py_BEGIN_ALLOW_THREADS
        job_copy(job);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; whole && i < job->count; i++)
        whole = job->entries[i].done;
    call_run(&call, NULL);
    PyBuffer_Release(&target);
    return PyBool_FromLong(whole);
}

static PyObject *read_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    struct call call = {0};
    struct job *job = &call.job;
    PyObject *pieces = NULL;
    if (nargs != 6)
        return PyErr_Format(PyExc_TypeError, "read_list takes 6 positional arguments, got %zd", nargs);
    if (call_open(&call, args, 1) == 0)
        pieces = PyList_New(job->count);
    for (Py_ssize_t i = 0; pieces && i < job->count; i++) {
        PyObject *piece = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)job->entries[i].length);
        if (piece) {
            job->entries[i].dest = (uint8_t *)PyBytes_AsString(piece);
            PyList_SetItem(pieces, i, piece);
        } else {
            Py_CLEAR(pieces);
        }
    }
    return call_run(&call, pieces);
}

static PyObject *announce(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    struct call call = {0};
    int64_t announced = -1;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "announce takes 4 positional arguments, got %zd", nargs);
    if (call_open(&call, args, 0) == 0) {
        Py_BEGIN_ALLOW_THREADS
        announced = job_announce(&call.job);
        Py_END_ALLOW_THREADS
    }
    call_run(&call, NULL);
    return announced < 0 ? NULL : PyLong_FromLongLong(announced);
}

/* Keeps the GIL: it never waits. */
static PyObject *read_cached(PyObject *module, PyObject *args)
{
    (void)module;
    const char *prefix;
    Py_ssize_t prefix_bytes, total;
    PyObject *files, *frame = NULL;
    if (!PyArg_ParseTuple(args, "y#O!:read_cached", &prefix, &prefix_bytes, &PyTuple_Type, &files))
        return NULL;
    const Py_ssize_t count = PyTuple_Size(files);
    struct file {
        const char *path;
        long long offset;
        Py_ssize_t length;
        int dirfd;
        unsigned int expected;
    } *const wanted = PyMem_Calloc((size_t)count, sizeof *wanted);
    if (!wanted)
        return PyErr_NoMemory();
    total = prefix_bytes;
    for (Py_ssize_t i = 0; i < count; i++) {
        struct file *file = &wanted[i];
        PyObject *const item = PyTuple_GetItem(files, i);
        if (!PyTuple_Check(item))
            PyErr_Format(PyExc_TypeError, "files[%zd] must be a tuple, not %R", i, Py_TYPE(item));
        else if (PyArg_ParseTuple(item, "iyLnI;a file is (dirfd, path, offset, length, expected)", &file->dirfd,
                                  &file->path, &file->offset, &file->length, &file->expected)
                 && (file->offset < 0 || file->length < 0 || file->length > PY_SSIZE_T_MAX - total))
            PyErr_Format(PyExc_ValueError, "offset %lld and length %zd are not a range of a file", file->offset,
                         file->length);
        if (PyErr_Occurred())
            goto done;
        total += file->length;
    }
    frame = PyBytes_FromStringAndSize(NULL, total);
    if (!frame)
        goto done;
    uint8_t *dest = (uint8_t *)PyBytes_AsString(frame);
    memcpy(dest, prefix, (size_t)prefix_bytes);
    dest += prefix_bytes;
    for (Py_ssize_t i = 0; i < count; dest += wanted[i++].length) {
        if (!read_if_cached(wanted[i].dirfd, wanted[i].path, wanted[i].offset, dest, (size_t)wanted[i].length,
                            wanted[i].expected)) {
            Py_DECREF(frame);
            frame = Py_NewRef(Py_None);
            break;
        }
    }
done:
    PyMem_Free(wanted);
    return frame;
}

/* Keeps the GIL, too. */
static PyObject *pread_cached(PyObject *module, PyObject *args)
{
    (void)module;
    int fd;
    Py_buffer target;
    long long offset;
    if (!PyArg_ParseTuple(args, "iw*L:pread_cached", &fd, &target, &offset))
        return NULL;
    const ssize_t got = read_now(fd, target.buf, (size_t)target.len, (off_t)offset);
    PyBuffer_Release(&target);
    return PyLong_FromSsize_t(got < 0 ? 0 : got);
}

enum { GIL_FREE_BYTES = 16 << 10 }; /* bytes that are only counted: from about 1 us on others may run */

static PyObject *write_counted(PyObject *module, PyObject *args)
{
    (void)module;
    struct counted counted = {0};
    int fd;
    long long at;
    unsigned long long checksum, block;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "iLKKy*:write_counted", &fd, &at, &checksum, &block, &data))
        return NULL;
    PyObject *closed = NULL, *result = NULL;
    if (at < 0 || at > INT64_MAX - data.len || checksum > UINT32_MAX || block > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "need 0 <= size_bytes, and checksums from 0 to 2**32 - 1");
        goto done;
    }
    closed = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)((at % BLOCK_BYTES + data.len) / BLOCK_BYTES) * 4);
    if (!closed)
        goto done;
    counted.at = at, counted.checksum = (uint32_t)checksum, counted.block = (uint32_t)block;
    counted.closed = (uint32_t *)(void *)PyBytes_AsString(closed);
    size_t written;
    if (fd >= 0 || data.len > GIL_FREE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        written = counted_write(&counted, fd, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    } else {
        written = counted_write(&counted, fd, data.buf, (size_t)data.len);
    }
    result = Py_BuildValue("nIIy#i", (Py_ssize_t)written, counted.checksum, counted.block, (char *)counted.closed,
                           (Py_ssize_t)counted.ended * 4, counted.error);
done:
    Py_XDECREF(closed);
    PyBuffer_Release(&data);
    return result;
}

static int module_exec(PyObject *module)
{
    crc_choose();
    joining_choose();
    hash_choose();
    if (types_make() < 0 || PyModule_AddType(module, StoredFileType) < 0 || PyModule_AddType(module, LocationsType) < 0)
        return -1;
    if (PyModule_AddIntConstant(module, "OPEN", FAIL_OPEN) < 0 || PyModule_AddIntConstant(module, "READ", FAIL_READ) < 0
        || PyModule_AddIntConstant(module, "SHORT", FAIL_SHORT) < 0
        || PyModule_AddIntConstant(module, "CHECKSUM", FAIL_CHECKSUM) < 0
        || PyModule_AddIntMacro(module, MAX_LOCATED_BYTES) < 0 || PyModule_AddIntMacro(module, NODE_BITS) < 0)
        return -1;
    return 0;
}

static PyMethodDef methods[] = {
    {"copy_into", (PyCFunction)(void (*)(void))copy_into, METH_FASTCALL, "See _native.pyi."},
    {"find", (PyCFunction)(void (*)(void))locations_find, METH_FASTCALL, "See _native.pyi."},
    {"announce", (PyCFunction)(void (*)(void))announce, METH_FASTCALL, "See _native.pyi."},
    {"pread_cached", pread_cached, METH_VARARGS, "See _native.pyi."},
    {"read_cached", read_cached, METH_VARARGS, "See _native.pyi."},
    {"read_frame", (PyCFunction)(void (*)(void))read_frame, METH_FASTCALL, "See _native.pyi."},
    {"read_into", (PyCFunction)(void (*)(void))read_into, METH_FASTCALL, "See _native.pyi."},
    {"read_list", (PyCFunction)(void (*)(void))read_list, METH_FASTCALL, "See _native.pyi."},
    {"write_counted", write_counted, METH_VARARGS, "See _native.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* TABLES_LOCK guards what calls share */
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "Batch reads, and writes, that release the GIL once; contracts in _native.pyi.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module_def); }
