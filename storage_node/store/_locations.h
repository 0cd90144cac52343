/* Locations of objects: what a batch needs to know of each, found by name without Python objects.
 *
 * A StoredFile is a file that holds objects. A segment, once it has been read often enough without waiting
 * for a drive, is mapped; see _mapped_read.h. Locations is a hash table from catalog keys to StoredFile,
 * offset, size and checksum, which it takes from catalog values. An object takes 40 to 45 bytes besides its key, and
 * no Python object if it is in a segment. A full table forgets everything. Prefetching hides most of what a large
 * table costs; see wave_announce. The contracts are in drive/locations.py.
 *
 * Every function here runs with the GIL, or, where there is none, with TABLES_LOCK. Include after Python.h and
 * _batch_read.h.
 */
#ifndef AIS_LOADER_LOCATIONS_H
#define AIS_LOADER_LOCATIONS_H

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Stored files --------------------------------------------------------------------------------*/

enum { WARM_READS = 4 }; /* of a segment, without waiting, until it is mapped */
enum { COLD_READS = 64 }; /* the same after a copy that had to wait */
enum { MAX_MAPPINGS = 8192 };
static const int64_t MAX_MAPPED_BYTES = (int64_t)8 << 30; /* of address space; their page tables take a 500th */
/* Files that lose their last reference lower these outside of the lock. */
static _Atomic int64_t mapped_bytes;
static _Atomic int mappings;

/* What the GIL guards elsewhere: all tables, and the mappings of all files. No Python code runs with it. */
#ifdef Py_GIL_DISABLED
static PyMutex tables_lock;
#define TABLES_LOCK() PyMutex_Lock(&tables_lock)
#define TABLES_UNLOCK() PyMutex_Unlock(&tables_lock)
#else
#define TABLES_LOCK() ((void)0)
#define TABLES_UNLOCK() ((void)0)
#endif

typedef struct {
    PyObject_HEAD
    PyObject *path; /* bytes, relative to the drive's folder of objects */
    uint8_t *map;
    int64_t map_bytes;
    int warm;  /* reads without waiting, less those that it has to make up for */
    int users; /* entries of running jobs that are copied out of the mapping */
    char is_segment, is_dropped;
} StoredFile;

static PyTypeObject *StoredFileType;

static StoredFile *stored_file_make(PyObject *path, int is_segment)
{
    StoredFile *file = PyObject_New(StoredFile, StoredFileType);
    if (file) {
        file->path = Py_NewRef(path);
        file->map = NULL;
        file->map_bytes = 0;
        file->warm = file->users = 0;
        file->is_segment = (char)is_segment, file->is_dropped = 0;
    }
    return file;
}

static void stored_file_unmap(StoredFile *file)
{
    if (file->map) {
        munmap(file->map, (size_t)file->map_bytes);
        mapped_bytes -= file->map_bytes;
        mappings--;
        file->map = NULL;
    }
}

static void stored_file_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    stored_file_unmap((StoredFile *)self);
    Py_XDECREF(((StoredFile *)self)->path);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *stored_file_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"path", "is_segment", NULL};
    PyObject *path;
    int is_segment;
    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, named, "Sp:StoredFile", names, &path, &is_segment))
        return NULL;
    return (PyObject *)stored_file_make(path, is_segment);
}

/* Map a segment. Nothing is wrong if it cannot be: it is read then. */
static void stored_file_map(StoredFile *file, int dirfd)
{
    struct stat status;
    const int fd = openat(dirfd, PyBytes_AsString(file->path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0
        && mapped_bytes + status.st_size <= MAX_MAPPED_BYTES && mappings < MAX_MAPPINGS) {
        void *const map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            file->map = map;
            file->map_bytes = status.st_size;
            mapped_bytes += status.st_size;
            mappings++;
        }
    }
    close(fd);
}

/* The bytes of an entry in the mapping, if they may be taken from there. The mapping stays until the caller
 * calls stored_file_done. */
static const uint8_t *stored_file_bytes(StoredFile *file, int64_t offset, int64_t length)
{
    if (!file->map || file->warm < WARM_READS || offset > file->map_bytes - length)
        return NULL;
    file->users++;
    return file->map + offset;
}

/* Locations in it are void, and nothing refers to its bytes any more: a mapping would keep them on the drive. */
static void stored_file_drop(StoredFile *file)
{
    file->is_dropped = 1;
    if (!file->users)
        stored_file_unmap(file);
}

/* An entry has been read. Learns whether its job waited for a drive, or a copy out of a mapping failed. */
static void stored_file_done(StoredFile *file, int dirfd, int was_mapped, int waited, int faulted)
{
    if (!file->is_segment)
        return;
    if (was_mapped && !--file->users && file->is_dropped)
        stored_file_unmap(file);
    if (faulted)
        file->warm = WARM_READS - COLD_READS;
    else if (waited)
        file->warm = file->warm < 0 ? file->warm : 0;
    else if (file->warm < WARM_READS && ++file->warm == WARM_READS && !file->map && !file->is_dropped)
        stored_file_map(file, dirfd);
}

static PyMemberDef stored_file_members[] = {
    {"path", T_OBJECT_EX, offsetof(StoredFile, path), READONLY, "Path below the drive's folder of objects."},
    {"is_dropped", T_BOOL, offsetof(StoredFile, is_dropped), READONLY, "Whether its locations are void."},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *stored_file_is_mapped(PyObject *self, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((StoredFile *)self)->map != NULL);
}

static PyGetSetDef stored_file_getset[] = {
    {"is_mapped", stored_file_is_mapped, NULL, "Whether a mapping exists.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot stored_file_slots[] = {
    {Py_tp_new, (void *)stored_file_new},
    {Py_tp_dealloc, (void *)stored_file_dealloc},
    {Py_tp_members, stored_file_members},
    {Py_tp_getset, stored_file_getset},
    {Py_tp_doc, "See locations.StoredFilePython."},
    {0, NULL},
};

static PyType_Spec stored_file_spec = {
    .name = "storage_node.store._native.StoredFile",
    .basicsize = sizeof(StoredFile),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stored_file_slots,
};

/* ---- Locations -----------------------------------------------------------------------------------*/

enum { FIRST_INDEX = 1 << 10, FILE_BYTES = 192 }; /* FILE_BYTES: a StoredFile of its own, with its path */
enum { TAG_BITS = 4, ROW_BITS = 32 - TAG_BITS, ROW_MASK = (1 << ROW_BITS) - 1 };
enum { MAX_KEY_BYTES = UINT16_MAX };
enum { HUGE_BYTES = 4 << 20 }; /* arrays from this size on are in huge pages, where the system has them */

struct location { /* half a cache line */
    StoredFile *file; /* NULL: removed */
    int64_t offset;
    uint32_t size, checksum, key_at, hash;
};

typedef struct {
    PyObject_HEAD
    PyObject *segments; /* path to StoredFile */
    struct location *rows;
    char *keys;        /* end to end, each behind its size in two bytes */
    uint32_t *index;   /* row + 1 below a tag of its hash, or 0; a power of two, at most three quarters full */
    size_t row_count, row_room, key_count, key_room, index_room, file_bytes, limit_bytes, counted_bytes;
    int dirfd;
} Locations;

static PyTypeObject *LocationsType;
static size_t all_bytes, table_count; /* of all tables; `counted_bytes` is a table's part */
static uint64_t hash_seed; /* names come from outside: nobody may choose those that collide */

static int location_is_valid(const struct location *row) { return row->file && !row->file->is_dropped; }

static uint64_t mixed(uint64_t one, uint64_t other)
{
    const unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Of head and tail as if they were one string: the head is the same for all names of a bucket. */
static uint32_t key_hash(const char *head, size_t head_bytes, const char *tail, size_t tail_bytes)
{
    const struct part {
        const char *data;
        size_t size;
    } parts[2] = {{head, head_bytes}, {tail, tail_bytes}};
    uint64_t hash = hash_seed ^ (head_bytes + tail_bytes) * 0x9E3779B97F4A7C15u;
    uint8_t word[8];
    size_t filled = 0;
    for (int p = 0; p < 2; p++) {
        const char *data = parts[p].data;
        size_t left = parts[p].size;
        while (left) {
            if (!filled && left >= 8) {
                uint64_t whole;
                memcpy(&whole, data, 8);
                hash = mixed(hash ^ whole, 0xA0761D6478BD642Fu);
                data += 8, left -= 8;
                continue;
            }
            word[filled++] = (uint8_t)*data++;
            left--;
            if (filled == 8) {
                uint64_t whole;
                memcpy(&whole, word, 8);
                hash = mixed(hash ^ whole, 0xA0761D6478BD642Fu);
                filled = 0;
            }
        }
    }
    uint64_t rest = 0;
    memcpy(&rest, word, filled);
    return (uint32_t)(mixed(hash ^ rest, 0xE7037ED1A0B428DBu) >> 32);
}

static uint32_t index_tag(uint32_t hash) { return hash & ~(uint32_t)ROW_MASK; }

static uint32_t *index_first(const Locations *self, uint32_t hash) { return &self->index[hash & (self->index_room - 1)]; }

static const char *location_key(const Locations *self, const struct location *row, size_t *bytes)
{
    uint16_t size;
    memcpy(&size, self->keys + row->key_at, sizeof size);
    *bytes = size;
    return self->keys + row->key_at + sizeof size;
}

/* Where the row of a key is named in the index, or would be. A row is looked at only if the tag fits. */
static uint32_t *location_slot(const Locations *self, uint32_t hash, const char *head, size_t head_bytes,
                               const char *tail, size_t tail_bytes)
{
    const size_t mask = self->index_room - 1;
    for (size_t at = hash & mask;; at = (at + 1) & mask) {
        uint32_t *const slot = &self->index[at];
        if (!*slot)
            return slot;
        if ((*slot ^ hash) & ~(uint32_t)ROW_MASK)
            continue;
        const struct location *row = &self->rows[(*slot & ROW_MASK) - 1];
        if (row->hash != hash)
            continue;
        size_t bytes;
        const char *const key = location_key(self, row, &bytes);
        if (bytes == head_bytes + tail_bytes && !memcmp(key, head, head_bytes)
            && !memcmp(key + head_bytes, tail, tail_bytes))
            return slot;
    }
}

/* Row of a slot, or NULL for one that is empty. */
static struct location *slot_row(const Locations *self, uint32_t slot)
{
    return slot ? &self->rows[(slot & ROW_MASK) - 1] : NULL;
}

/* An array in pages of its own, which grows without being copied. Returns NULL if there is no memory; the array
 * is then as it was. */
static void *array_grow(void *array, size_t bytes, size_t new_bytes)
{
    void *const grown = array ? mremap(array, bytes, new_bytes, MREMAP_MAYMOVE)
                              : mmap(NULL, new_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grown == MAP_FAILED)
        return NULL;
    if (new_bytes >= HUGE_BYTES)
        madvise(grown, new_bytes, MADV_HUGEPAGE);
    return grown;
}

static void array_free(void *array, size_t bytes)
{
    if (array)
        munmap(array, bytes);
}

static void hash_choose(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&hash_seed, sizeof hash_seed, GRND_NONBLOCK) != sizeof hash_seed)
        hash_seed = mixed((uint64_t)now.tv_nsec ^ (uintptr_t)&now, 0x8EBC6AF09C88C6E3u) ^ (uint64_t)now.tv_sec;
}

static void locations_forget(Locations *self)
{
    struct location *const rows = self->rows;
    const size_t count = self->row_count, room = self->row_room;
    PyObject *const segments = self->segments;
    array_free(self->keys, self->key_room);
    array_free(self->index, self->index_room * sizeof *self->index);
    self->rows = NULL, self->keys = NULL, self->index = NULL, self->segments = NULL;
    self->row_count = self->row_room = self->key_count = self->key_room = self->index_room = self->file_bytes = 0;
    all_bytes -= self->counted_bytes;
    self->counted_bytes = 0;
    for (size_t i = 0; i < count; i++)
        Py_XDECREF((PyObject *)rows[i].file);
    array_free(rows, room * sizeof *rows);
    Py_XDECREF(segments);
}

/* What is in use: pages that nothing has been written to take no memory. */
static size_t locations_size(const Locations *self)
{
    return self->row_count * sizeof *self->rows + self->key_count + self->index_room * sizeof *self->index
        + self->file_bytes;
}

static int index_grow(Locations *self)
{
    const size_t room = self->index_room ? 2 * self->index_room : FIRST_INDEX;
    uint32_t *const index = array_grow(NULL, 0, room * sizeof *index);
    if (!index)
        return -1;
    for (size_t row = 0; row < self->row_count; row++) {
        const uint32_t hash = self->rows[row].hash;
        size_t at = hash & (room - 1);
        while (index[at])
            at = (at + 1) & (room - 1);
        index[at] = ((uint32_t)row + 1) | index_tag(hash);
    }
    array_free(self->index, self->index_room * sizeof *index);
    self->index = index, self->index_room = room;
    return 0;
}

/* Room for one more row, whose key has this size. When that would exceed the limit, forgets everything, or returns
 * 1 if nothing may be forgotten. */
static int locations_make_room(Locations *self, size_t key_bytes, int may_forget)
{
    const size_t kept = key_bytes + sizeof(uint16_t), size = locations_size(self);
    all_bytes += size - self->counted_bytes;
    self->counted_bytes = size;
    if ((all_bytes > self->limit_bytes && size > self->limit_bytes / table_count) || self->key_count + kept > UINT32_MAX
        || self->row_count >= ROW_MASK - 1) {
        if (!may_forget)
            return 1;
        locations_forget(self);
    }
    if (!self->segments && !(self->segments = PyDict_New()))
        return -1;
    if (self->row_count == self->row_room) {
        const size_t room = self->row_room ? 2 * self->row_room : FIRST_INDEX / 2, one = sizeof *self->rows;
        struct location *const rows = array_grow(self->rows, self->row_room * one, room * one);
        if (!rows)
            goto no_memory;
        self->rows = rows, self->row_room = room;
    }
    if (self->key_count + kept > self->key_room) {
        const size_t room = 2 * self->key_room + (kept + 4095) / 4096 * 4096;
        char *const keys = array_grow(self->keys, self->key_room, room);
        if (!keys)
            goto no_memory;
        self->keys = keys, self->key_room = room;
    }
    if (4 * (self->row_count + 1) > 3 * self->index_room && index_grow(self) < 0)
        goto no_memory;
    return 0;
no_memory:
    PyErr_NoMemory();
    return -1;
}

/* The file of an entry; a new reference. The objects of a segment share one. */
static StoredFile *file_of_entry(Locations *self, const char *path, size_t path_bytes, int64_t offset)
{
    const char *const end = offset ? memrchr(path, '/', path_bytes) : NULL;
    PyObject *const name = PyBytes_FromStringAndSize(path, end ? end - path : (Py_ssize_t)path_bytes);
    if (!name)
        return NULL;
    StoredFile *file = end ? (StoredFile *)PyDict_GetItemWithError(self->segments, name) : NULL;
    if (file) {
        Py_INCREF((PyObject *)file);
    } else if (!PyErr_Occurred() && (file = stored_file_make(name, end != NULL))) {
        self->file_bytes += FILE_BYTES;
        if (end && PyDict_SetItem(self->segments, name, (PyObject *)file) < 0)
            Py_CLEAR(file);
    }
    Py_DECREF(name);
    return file;
}

/* A catalog value up to its path, as FORMAT.md describes it. */
struct __attribute__((packed)) stored {
    uint8_t format, kind;
    uint16_t writes_bytes;
    uint32_t epoch;
    uint64_t counter;
    uint32_t node;
    uint64_t size;
    uint32_t checksum;
    uint64_t modified_ns, offset;
    uint16_t path_bytes;
    char path[];
};
enum { STORED_FORMAT = 2, OBJECT_KIND = 1 };
enum { MAX_LOCATED_BYTES = 4 << 20 }; /* larger objects are read in pieces, each of which is looked up by version */

/* Keep what a catalog value says of its object. Tombstones and large objects are not kept, nor are long keys, nor
 * values that only format.decode_entry can judge. Returns 1 if the memory is full and nothing may be forgotten. */
static int add_stored(Locations *self, PyObject *key, PyObject *value, int replace, int may_forget)
{
    const char *const text = PyBytes_AsString(key);
    const size_t bytes = (size_t)PyBytes_Size(key), value_bytes = (size_t)PyBytes_Size(value);
    const struct stored *const stored = (const struct stored *)PyBytes_AsString(value);
    if (bytes > MAX_KEY_BYTES || value_bytes < sizeof *stored || stored->format != STORED_FORMAT
        || stored->kind != OBJECT_KIND || !stored->path_bytes || stored->size > MAX_LOCATED_BYTES
        || stored->offset > (uint64_t)INT64_MAX - stored->size
        || value_bytes < sizeof *stored + stored->path_bytes + stored->writes_bytes
        || memchr(stored->path, 0, stored->path_bytes))
        return 0;
    const int full = locations_make_room(self, bytes, may_forget);
    if (full)
        return full;
    const uint32_t hash = key_hash(text, bytes, "", 0);
    uint32_t *const slot = location_slot(self, hash, text, bytes, "", 0);
    struct location *row = slot_row(self, *slot);
    if (row && !replace && location_is_valid(row))
        return 0;
    StoredFile *const file = file_of_entry(self, stored->path, stored->path_bytes, (int64_t)stored->offset);
    if (!file)
        return -1;
    StoredFile *const replaced = row ? row->file : NULL;
    if (!row) {
        const uint16_t kept = (uint16_t)bytes;
        row = &self->rows[self->row_count];
        *slot = (uint32_t)++self->row_count | index_tag(hash);
        row->hash = hash;
        row->key_at = (uint32_t)self->key_count;
        memcpy(self->keys + self->key_count, &kept, sizeof kept);
        memcpy(self->keys + self->key_count + sizeof kept, text, bytes);
        self->key_count += sizeof kept + bytes;
    }
    row->file = file;
    row->offset = (int64_t)stored->offset, row->size = (uint32_t)stored->size, row->checksum = stored->checksum;
    Py_XDECREF((PyObject *)replaced);
    return 0;
}

static PyObject *locations_add(PyObject *self, PyObject *args)
{
    PyObject *keys, *values;
    int replace, may_forget, full = 0;
    if (!PyArg_ParseTuple(args, "O!O!pp:add", &PyList_Type, &keys, &PyList_Type, &values, &replace, &may_forget))
        return NULL;
    keys = PyList_AsTuple(keys), values = PyList_AsTuple(values); /* other threads may change the lists */
    const Py_ssize_t count = keys ? PyTuple_Size(keys) : 0;
    if (keys && values && PyTuple_Size(values) != count)
        PyErr_Format(PyExc_ValueError, "%zd keys and %zd values", count, PyTuple_Size(values));
    TABLES_LOCK();
    for (Py_ssize_t i = 0; i < count && !full && !PyErr_Occurred(); i++) {
        PyObject *const key = PyTuple_GetItem(keys, i), *const value = PyTuple_GetItem(values, i);
        if (value == Py_None)
            continue;
        if (!PyBytes_Check(key) || !PyBytes_Check(value))
            PyErr_Format(PyExc_TypeError, "keys and values must be bytes, not %R and %R", Py_TYPE(key), Py_TYPE(value));
        else
            full = add_stored((Locations *)self, key, value, replace, may_forget);
    }
    TABLES_UNLOCK();
    Py_XDECREF(keys);
    Py_XDECREF(values);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(!full);
}

static PyObject *locations_remove(PyObject *self, PyObject *keys)
{
    Locations *const table = (Locations *)self;
    PyObject *const iterator = PyObject_GetIter(keys);
    PyObject *key;
    if (!iterator)
        return NULL;
    while ((key = PyIter_Next(iterator))) {
        if (!PyBytes_Check(key)) {
            PyErr_Format(PyExc_TypeError, "keys must be bytes, not %R", Py_TYPE(key));
        } else {
            const char *const text = PyBytes_AsString(key);
            const size_t bytes = (size_t)PyBytes_Size(key);
            TABLES_LOCK();
            struct location *const row =
                table->index_room
                    ? slot_row(table, *location_slot(table, key_hash(text, bytes, "", 0), text, bytes, "", 0))
                    : NULL;
            if (row)
                Py_CLEAR(row->file);
            TABLES_UNLOCK();
        }
        Py_DECREF(key);
        if (PyErr_Occurred())
            break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *locations_drop(PyObject *self, PyObject *path)
{
    Locations *const table = (Locations *)self;
    TABLES_LOCK();
    StoredFile *const file = table->segments ? (StoredFile *)PyDict_GetItemWithError(table->segments, path) : NULL;
    if (file) {
        stored_file_drop(file);
        PyDict_DelItem(table->segments, path);
    }
    TABLES_UNLOCK();
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *locations_clear(PyObject *self, PyObject *nothing)
{
    (void)nothing;
    TABLES_LOCK();
    locations_forget((Locations *)self);
    TABLES_UNLOCK();
    Py_RETURN_NONE;
}

static int location_column(PyObject *source, Py_buffer *view, const char *name, const char *formats, Py_ssize_t item,
                           Py_ssize_t count)
{
    if (PyObject_GetBuffer(source, view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    format += *format == '@';
    if (view->itemsize == item && view->len == item * count && *format && !format[1] && strchr(formats, *format))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s must hold %zd native items of %zd bytes", name, count, item);
    PyBuffer_Release(view);
    return -1;
}

enum { WAVE = 64 }; /* names that are looked up together */

/* A name that is looked up. */
struct wanted {
    const char *text; /* NULL: no object has such a name, and whoever looks it up says so */
    size_t bytes;
    uint32_t hash;
};

static void wave_open(struct wanted *wave, PyObject *names, Py_ssize_t first, Py_ssize_t count, const char *head,
                      size_t head_bytes)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t bytes = 0;
        PyObject *const name = PyTuple_GetItem(names, first + i);
        wave[i].text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &bytes) : NULL;
        wave[i].bytes = (size_t)bytes;
        if (wave[i].text)
            wave[i].hash = key_hash(head, head_bytes, wave[i].text, wave[i].bytes);
        else
            PyErr_Clear();
    }
}

/* In a large table every step of a look-up waits for memory: the index, the row, the key and the file. Each step is
 * announced for all names of a wave before the first one takes it, so that they wait together. */
static void wave_announce(const struct wanted *wave, Py_ssize_t count, const Locations *table)
{
    if (!table->index_room)
        return;
    for (Py_ssize_t i = 0; i < count; i++)
        if (wave[i].text)
            __builtin_prefetch(index_first(table, wave[i].hash));
    for (Py_ssize_t i = 0; i < count; i++)
        if (wave[i].text && *index_first(table, wave[i].hash))
            __builtin_prefetch(slot_row(table, *index_first(table, wave[i].hash)));
    for (Py_ssize_t i = 0; i < count; i++) {
        const struct location *const row = wave[i].text ? slot_row(table, *index_first(table, wave[i].hash)) : NULL;
        if (row && row->hash == wave[i].hash) {
            const char *const key = table->keys + row->key_at;
            __builtin_prefetch(key);
            __builtin_prefetch(key + sizeof(uint16_t) + 63);
            __builtin_prefetch(row->file);
        }
    }
}

static PyObject *locations_find(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    enum { COLUMN_COUNT = 4 };
    static const struct {
        const char *name, *formats;
        Py_ssize_t item;
    } kinds[COLUMN_COUNT] = {{"dirfds", "i", 4}, {"offsets", "lq", 8}, {"sizes", "lq", 8}, {"checksums", "I", 4}};
    Py_buffer views[COLUMN_COUNT];
    struct wanted wave[WAVE];
    int opened = 0;
    PyObject *files = NULL;
    (void)module;
    if (nargs != 7)
        return PyErr_Format(PyExc_TypeError, "find takes 7 positional arguments, got %zd", nargs);
    if (!PyTuple_Check(args[0]) || !PyBytes_Check(args[1]) || !PyList_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "find takes a tuple of tables, bytes and a list of names");
    PyObject *const tables = args[0];
    const char *const head = PyBytes_AsString(args[1]);
    const size_t head_bytes = (size_t)PyBytes_Size(args[1]);
    const Py_ssize_t searched = PyTuple_Size(tables);
    for (Py_ssize_t t = 0; t < searched; t++)
        if (Py_TYPE(PyTuple_GetItem(tables, t)) != LocationsType)
            return PyErr_Format(PyExc_TypeError, "tables must be Locations");
    PyObject *const names = PyList_AsTuple(args[2]); /* which holds their text, and stays as it is */
    if (!names)
        return NULL;
    const Py_ssize_t count = PyTuple_Size(names);
    while (opened < COLUMN_COUNT) {
        if (location_column(args[3 + opened], &views[opened], kinds[opened].name, kinds[opened].formats,
                            kinds[opened].item, count) < 0)
            goto done;
        opened++;
    }
    files = PyList_New(count);
    for (Py_ssize_t first = 0; files && first < count; first += WAVE) {
        const Py_ssize_t size = count - first < WAVE ? count - first : WAVE;
        wave_open(wave, names, first, size, head, head_bytes);
        TABLES_LOCK();
        for (Py_ssize_t t = 0; t < searched; t++)
            wave_announce(wave, size, (Locations *)PyTuple_GetItem(tables, t));
        for (Py_ssize_t i = first; i < first + size; i++) {
            const struct wanted *const one = &wave[i - first];
            const struct location *found = NULL;
            for (Py_ssize_t t = 0; one->text && t < searched && !found; t++) {
                const Locations *const table = (Locations *)PyTuple_GetItem(tables, t);
                if (!table->index_room)
                    continue;
                found = slot_row(table, *location_slot(table, one->hash, head, head_bytes, one->text, one->bytes));
                if (found && location_is_valid(found))
                    ((int32_t *)views[0].buf)[i] = table->dirfd;
                else
                    found = NULL;
            }
            if (found) {
                ((int64_t *)views[1].buf)[i] = found->offset;
                ((int64_t *)views[2].buf)[i] = found->size;
                ((uint32_t *)views[3].buf)[i] = found->checksum;
            }
            PyList_SetItem(files, i, Py_NewRef(found ? (PyObject *)found->file : Py_None));
        }
        TABLES_UNLOCK();
    }
done:
    while (opened)
        PyBuffer_Release(&views[--opened]);
    Py_DECREF(names);
    return files;
}

static PyObject *locations_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    static char *names[] = {"dirfd", "limit_bytes", NULL};
    int dirfd;
    Py_ssize_t limit_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, named, "in:Locations", names, &dirfd, &limit_bytes))
        return NULL;
    Locations *const self = (Locations *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    TABLES_LOCK();
    table_count++;
    TABLES_UNLOCK();
    self->dirfd = dirfd;
    self->limit_bytes = limit_bytes < 0 ? 0 : (size_t)limit_bytes;
    return (PyObject *)self;
}

static void locations_dealloc(PyObject *self)
{
    PyTypeObject *const type = Py_TYPE(self);
    TABLES_LOCK();
    locations_forget((Locations *)self);
    table_count--;
    TABLES_UNLOCK();
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t locations_length(PyObject *self)
{
    const Locations *const table = (Locations *)self;
    Py_ssize_t count = 0;
    TABLES_LOCK();
    for (size_t row = 0; row < table->row_count; row++)
        count += location_is_valid(&table->rows[row]);
    TABLES_UNLOCK();
    return count;
}

static PyMethodDef locations_methods[] = {
    {"add", locations_add, METH_VARARGS, "See locations.LocationsPython.add."},
    {"remove", locations_remove, METH_O, "See locations.LocationsPython.remove."},
    {"drop", locations_drop, METH_O, "See locations.LocationsPython.drop."},
    {"clear", locations_clear, METH_NOARGS, "See locations.LocationsPython.clear."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot locations_slots[] = {
    {Py_tp_new, (void *)locations_new},
    {Py_tp_dealloc, (void *)locations_dealloc},
    {Py_tp_methods, locations_methods},
    {Py_sq_length, (void *)locations_length},
    {Py_tp_doc, "See locations.LocationsPython."},
    {0, NULL},
};

static PyType_Spec locations_spec = {
    .name = "storage_node.store._native.Locations",
    .basicsize = sizeof(Locations),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = locations_slots,
};

/* Once for the process: what a type's objects share is shared by all of it. */
static int types_make(void)
{
    if (!StoredFileType)
        StoredFileType = (PyTypeObject *)PyType_FromSpec(&stored_file_spec);
    if (!LocationsType)
        LocationsType = (PyTypeObject *)PyType_FromSpec(&locations_spec);
    return StoredFileType && LocationsType ? 0 : -1;
}

#endif
