/* CRC-32C for Python: any contiguous buffer, without a copy, and without the GIL where that pays.
 *
 * Clients check with it what arrives, nodes what they store; its contract is in ais_loader/wire/checksum.py.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_crc32c.h"

enum { GIL_FREE_BYTES = 64 << 10 }; /* from about 3 us of work, letting others run pays */

static PyObject *crc_call(uint32_t (*update)(uint32_t, const uint8_t *, size_t), PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames)
{
    const Py_ssize_t named = kwnames ? PyTuple_Size(kwnames) : 0;
    if (nargs < 1 || nargs + named > 2
        || (named && PyUnicode_CompareWithASCIIString(PyTuple_GetItem(kwnames, 0), "crc")))
        return PyErr_Format(PyExc_TypeError, "expected (data, /, crc=0)");
    uint32_t crc = 0;
    if (nargs + named == 2) {
        const Py_ssize_t start = PyNumber_AsSsize_t(args[1], NULL); /* clips, so that any int gets the same error */
        if (start == -1 && PyErr_Occurred())
            return NULL;
        if (start < 0 || start > (Py_ssize_t)UINT32_MAX)
            return PyErr_Format(PyExc_ValueError, "crc must be from 0 to 2**32 - 1, got %R", args[1]);
        crc = (uint32_t)start;
    }
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0)
        return NULL;
    if (data.len > GIL_FREE_BYTES) {
        Py_BEGIN_ALLOW_THREADS
        crc = ~update(~crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    } else {
        crc = ~update(~crc, data.buf, (size_t)data.len);
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_crc32c(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)module;
    return crc_call(crc_update, args, nargs, kwnames);
}

static PyObject *py_crc32c_lanes(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)module;
    return crc_call(crc_lanes, args, nargs, kwnames);
}

static PyObject *py_crc32c_table(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    (void)module;
    return crc_call(crc_table, args, nargs, kwnames);
}

static int module_exec(PyObject *module)
{
    (void)module;
    crc_choose();
    return 0;
}

static PyMethodDef methods[] = {
    {"crc32c", (PyCFunction)(void (*)(void))py_crc32c, METH_FASTCALL | METH_KEYWORDS, "See checksum.crc32c."},
    {"crc32c_lanes", (PyCFunction)(void (*)(void))py_crc32c_lanes, METH_FASTCALL | METH_KEYWORDS,
     "crc32c as machines without wide registers compute it."},
    {"crc32c_table", (PyCFunction)(void (*)(void))py_crc32c_table, METH_FASTCALL | METH_KEYWORDS,
     "crc32c as machines without the instruction compute it."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* the tables are only written here, before anybody has the module */
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_crc32c",
    .m_doc = "CRC-32C of buffers; the contract is in checksum.py.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__crc32c(void) { return PyModuleDef_Init(&module_def); }
