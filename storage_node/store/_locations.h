/* Locations of objects: what a batch needs to know of each, found by name without Python objects.
 *
 * A StoredFile is a file that holds objects. A segment that is read without waiting for a drive is kept open, and
 * mapped after a while; see _mapped_read.h. Locations is a hash table from catalog keys to StoredFile, offset, size,
 * checksum and version, which it takes from catalog values. An object takes 48 to 53 bytes besides its key, and no Python
 * object. A full table forgets everything. Prefetching hides most of what a large table costs; see wave_announce. The
 * contracts are in drive/locations.py.
 *
 * A table is one mapping without pointers, of memory or of a file, which other processes map to read it; see
 * drive/shared_locations.py. Nothing in a file is taken for sound: positions are compared with the size of the mapping,
 * rows and paths with their checksums, on copies that no other process can change.
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

/* Mapping 64 KiB for the first time takes as long as five reads of 10 KiB by a descriptor that is open, and each copy
 * out of a mapping saves one of them. So a segment is kept open until as many bytes have been read as it has. Then it is
 * mapped. Without a descriptor, each read opens the file, and a few of them are enough. */
enum { WARM_READS = 4 }; /* of a segment, without waiting, until it is mapped */
enum { COLD_READS = 64 }; /* the same after a copy that had to wait */
enum { MAX_MAPPINGS = 8192 };
static const int64_t MAX_MAPPED_BYTES = (int64_t)8 << 30; /* of address space; their page tables take a 500th */
enum { MAX_KEPT_OPEN = 512 };
static int most_kept_open;
static int keeps_open = 1; /* the last job did not wait for a drive */
/* Files that lose their last reference lower these outside of the lock. */
static _Atomic int64_t mapped_bytes;
static _Atomic int mappings, kept_open;

/* What the GIL guards elsewhere: all tables, and the mappings and descriptors of all files. No Python code runs with it,
 * and nobody waits for another lock, so that a fork finds it free. It is taken outside of guarded(). */
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
    int64_t map_bytes, read_bytes; /* size of the file, once it is open or mapped; and what was read of it */
    int fd;    /* kept open until it is mapped; or -1 */
    int warm;  /* reads without waiting, less those that it has to make up for */
    int users; /* entries of running jobs that use the mapping or the descriptor */
    char is_segment, is_dropped;
} StoredFile;

static PyTypeObject *StoredFileType;

static StoredFile *stored_file_make(PyObject *path, int is_segment)
{
    StoredFile *file = PyObject_New(StoredFile, StoredFileType);
    if (file) {
        file->path = Py_NewRef(path);
        file->map = NULL;
        file->map_bytes = file->read_bytes = 0;
        file->fd = -1;
        file->warm = file->users = 0;
        file->is_segment = (char)is_segment, file->is_dropped = 0;
    }
    return file;
}

static void stored_file_close(StoredFile *file)
{
    if (file->fd >= 0) {
        close(file->fd);
        kept_open--;
        file->fd = -1;
    }
}

static void stored_file_unmap(StoredFile *file)
{
    stored_file_close(file);
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

/* Keep a segment open if its folders are cached and there are descriptors. */
static void stored_file_open(StoredFile *file, int dirfd)
{
    struct stat status;
    if (kept_open >= most_kept_open || (file->fd = open_if_cached(dirfd, PyBytes_AsString(file->path))) < 0)
        return;
    kept_open++;
    if (fstat(file->fd, &status) < 0 || !S_ISREG(status.st_mode))
        stored_file_close(file);
    else
        file->map_bytes = status.st_size;
}

/* Map a segment. Nothing is wrong if it cannot be: it is read then. */
static void stored_file_map(StoredFile *file, int dirfd)
{
    struct stat status;
    const int kept = file->fd >= 0;
    const int fd = kept ? file->fd : openat(dirfd, PyBytes_AsString(file->path), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
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
    if (!kept)
        close(fd);
    else if (file->map && !file->users)
        stored_file_close(file);
}

/* The bytes of an entry in the mapping, if they may be taken from there; otherwise a descriptor of the file, or -1. They
 * stay until the caller calls stored_file_done. A descriptor may be opened. */
static const uint8_t *stored_file_bytes(StoredFile *file, int dirfd, int64_t offset, int64_t length, int *fd)
{
    *fd = -1;
    if (file->map && file->warm >= WARM_READS && offset <= file->map_bytes - length) {
        file->users++;
        return file->map + offset;
    }
    if (file->fd < 0 && !file->map && keeps_open && dirfd >= 0 && file->is_segment && !file->is_dropped)
        stored_file_open(file, dirfd);
    if ((*fd = file->fd) >= 0)
        file->users++;
    return NULL;
}

/* Locations in it are void, and nothing refers to its bytes any more: a mapping would keep them on the drive. */
static void stored_file_drop(StoredFile *file)
{
    file->is_dropped = 1;
    if (!file->users)
        stored_file_unmap(file);
}

/* An entry of this size has been read, or was only prepared (size -1). Learns whether its job waited for a drive, or a
 * copy out of a mapping failed. */
static void stored_file_done(StoredFile *file, int dirfd, int was_used, int64_t length, int waited, int faulted)
{
    if (!file->is_segment)
        return;
    if (was_used && !--file->users) {
        if (file->is_dropped)
            stored_file_unmap(file);
        else if (file->map)
            stored_file_close(file);
    }
    if (faulted)
        file->warm = WARM_READS - COLD_READS;
    else if (waited)
        file->warm = file->warm < 0 ? file->warm : 0;
    else if (length >= 0 && !file->is_dropped) {
        file->warm += file->warm < WARM_READS;
        file->read_bytes += length;
        if (file->warm == WARM_READS && !file->map && (file->fd < 0 || file->read_bytes >= file->map_bytes))
            stored_file_map(file, dirfd);
    }
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
    {Py_tp_doc, "See _native.pyi."},
    {0, NULL},
};

static PyType_Spec stored_file_spec = {
    .name = "storage_node.store._native.StoredFile",
    .basicsize = sizeof(StoredFile),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = stored_file_slots,
};

/* ---- Locations -----------------------------------------------------------------------------------*/

enum { FIRST_ROWS = 768, FIRST_KEY_BYTES = 64 << 10 }; /* rows: three times a power of two */
enum { FILE_BYTES = 192 };                             /* a StoredFile of its own, with its path */
enum { TAG_BITS = 4, ROW_BITS = 32 - TAG_BITS, ROW_MASK = (1 << ROW_BITS) - 1 };
enum { MAX_KEY_BYTES = UINT16_MAX, MAX_PATH_BYTES = 1024, NODE_BITS = 20 };
enum { HUGE_BYTES = 4 << 20 }; /* tables from this size on are in huge pages, where the system has them */
#define NO_FILE UINT32_MAX

struct location {
    uint64_t counter; /* of the version */
    uint32_t origin;  /* its epoch above its node; 0 if they are larger */
    uint32_t offset, size, checksum, key_at, hash;
    uint32_t file; /* its number; NO_FILE: removed */
    uint32_t sum;  /* CRC-32C of what is before, and of the key */
};

/* The beginning of a table. shared_locations.py has the first numbers. */
struct head {
    char magic[8];
    uint64_t place, id, sequence;
    uint64_t seed, row_room, key_room, drops;
};
enum { HEAD_BYTES = 4096 };
static const char table_magic[8] = "AISLOC2";

/* A file of locations, in front of its path, among the keys. */
struct file_record {
    uint16_t path_bytes;
    uint8_t is_segment, unused;
    uint32_t sum; /* CRC-32C of what is before, and of the path */
};

typedef struct {
    PyObject_HEAD
    PyObject *segments; /* path to number, for those that are not dropped; NULL in a table that is only read */
    struct head *head;  /* one mapping: the head, rows, files, the index, keys */
    struct location *rows;
    uint32_t *file_at; /* where the record of each file is among the keys; 0: dropped */
    uint32_t *index;   /* row + 1 below a tag of its hash, or 0; at most three quarters full */
    char *keys;        /* end to end, each behind its size in two bytes; and file records */
    StoredFile **files; /* by number, the segments that this process has met */
    uint64_t seed, drops;
    size_t bytes, row_room, key_room, index_room; /* of the mapping */
    size_t row_count, key_count, file_count, file_bytes, limit_bytes, counted_bytes;
    int dirfd;
    char is_file, is_read_only; /* whether the mapping is that of a file, and whether others change it */
} Locations;

static PyTypeObject *LocationsType;
static size_t all_bytes, table_count; /* of all tables; `counted_bytes` is a table's part */
static uint64_t hash_seed; /* names come from outside: nobody may choose those that collide */

/* In a file, bytes may be missing, and anybody of this user may have changed them. Every step that looks at the
 * mapping runs here; see _mapped_read.h. A step calls nothing that must not be left in the middle. */
enum { BROKEN = -2 };
static int guarded(int (*step)(Locations *, void *), Locations *self, void *with)
{
    sigjmp_buf start;
    if (!self->is_file)
        return step(self, with);
    if (!faults_are_caught() || sigsetjmp(start, 0)) {
        copying = NULL;
        return BROKEN;
    }
    copying = &start;
    const int result = step(self, with);
    copying = NULL;
    return result;
}

static uint64_t mixed(uint64_t one, uint64_t other)
{
    const unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Of head and tail as if they were one string: the head is the same for all names of a bucket. */
static uint32_t key_hash(uint64_t seed, const char *head, size_t head_bytes, const char *tail, size_t tail_bytes)
{
    const struct part {
        const char *data;
        size_t size;
    } parts[2] = {{head, head_bytes}, {tail, tail_bytes}};
    uint64_t hash = seed ^ (head_bytes + tail_bytes) * 0x9E3779B97F4A7C15u;
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

/* Of a row and its key as if they were one string, or of a file record and its path. */
static uint32_t sum_of(const void *record, size_t record_bytes, const char *text, size_t text_bytes)
{
    const uint32_t crc = crc_update(0xFFFFFFFFu, record, record_bytes);
    return ~crc_update(crc, (const uint8_t *)text, text_bytes);
}

enum { ROW_SUMMED = offsetof(struct location, sum), FILE_SUMMED = offsetof(struct file_record, sum) };

/* Copy a row, which another process may be writing, and find its key. Returns 0 if it cannot be one. */
static int row_load(const Locations *self, size_t number, struct location *row, const char **key, size_t *key_bytes)
{
    uint16_t size;
    if (number >= self->row_room)
        return 0;
    memcpy(row, &self->rows[number], sizeof *row);
    __asm__ volatile("" : : "r"(row) : "memory"); /* what is checked is the copy */
    if (row->key_at > self->key_room - sizeof size)
        return 0;
    memcpy(&size, self->keys + row->key_at, sizeof size);
    *key = self->keys + row->key_at + sizeof size;
    *key_bytes = size;
    return size <= self->key_room - sizeof size - row->key_at;
}

/* Where the row of a key is named in the index, or would be, and the row, if there is one; NULL in an index that has
 * been damaged. A row is looked at only if the tag fits. */
static uint32_t *location_slot(const Locations *self, uint32_t hash, const char *head, size_t head_bytes,
                               const char *tail, size_t tail_bytes, struct location *row)
{
    const size_t mask = self->index_room - 1;
    for (size_t at = hash & mask, looks = 0; looks <= mask; at = (at + 1) & mask, looks++) {
        const uint32_t slot = self->index[at];
        const char *key;
        size_t bytes;
        if (!slot)
            return &self->index[at];
        if ((slot ^ hash) & ~(uint32_t)ROW_MASK)
            continue;
        if (row_load(self, (slot & ROW_MASK) - 1, row, &key, &bytes) && row->hash == hash
            && bytes == head_bytes + tail_bytes && !memcmp(key, head, head_bytes)
            && !memcmp(key + head_bytes, tail, tail_bytes))
            return &self->index[at];
    }
    return NULL;
}

/* The record of a file, and a copy of its path with a NUL behind it. Returns 0 if it was dropped, or is none. */
static int file_load(const Locations *self, uint32_t number, struct file_record *record, char *path)
{
    if (number >= self->row_room)
        return 0;
    const size_t at = *(volatile uint32_t *)&self->file_at[number];
    if (!at || at > self->key_room - sizeof *record)
        return 0;
    memcpy(record, self->keys + at, sizeof *record);
    if (record->path_bytes > MAX_PATH_BYTES || record->path_bytes > self->key_room - sizeof *record - at)
        return 0;
    memcpy(path, self->keys + at + sizeof *record, record->path_bytes);
    path[record->path_bytes] = 0;
    return sum_of(record, FILE_SUMMED, path, record->path_bytes) == record->sum && strlen(path) == record->path_bytes;
}

/* The file of a row; a new reference. NULL if it was dropped, or with an error. */
static StoredFile *file_take(Locations *self, uint32_t number)
{
    struct file_record record;
    char path[MAX_PATH_BYTES + 1];
    if (number >= self->row_room)
        return NULL;
    StoredFile **const known = &self->files[number];
    if (*known && *(volatile uint32_t *)&self->file_at[number])
        return (StoredFile *)Py_NewRef((PyObject *)*known);
    if (!file_load(self, number, &record, path))
        return NULL;
    PyObject *const name = PyBytes_FromStringAndSize(path, record.path_bytes);
    StoredFile *const file = name ? stored_file_make(name, record.is_segment) : NULL;
    Py_XDECREF(name);
    if (file && record.is_segment) {
        *known = (StoredFile *)Py_NewRef((PyObject *)file);
        self->file_bytes += FILE_BYTES;
    }
    return file;
}

static void hash_choose(void)
{
    struct rlimit files;
    most_kept_open = getrlimit(RLIMIT_NOFILE, &files) < 0 ? 0 : (int)(files.rlim_cur / 4 < MAX_KEPT_OPEN
                                                                        ? files.rlim_cur / 4 : MAX_KEPT_OPEN);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (getrandom(&hash_seed, sizeof hash_seed, GRND_NONBLOCK) != sizeof hash_seed)
        hash_seed = mixed((uint64_t)now.tv_nsec ^ (uintptr_t)&now, 0x8EBC6AF09C88C6E3u) ^ (uint64_t)now.tv_sec;
}

static size_t table_bytes(size_t row_room, size_t key_room)
{
    return HEAD_BYTES + row_room * (sizeof(struct location) + sizeof(uint32_t)) + row_room / 3 * 4 * sizeof(uint32_t)
        + key_room;
}

/* Take a mapping of this size. Returns -1 if there is no memory. */
static int table_take(Locations *self, void *map, size_t row_room, size_t key_room)
{
    self->files = map == MAP_FAILED ? NULL : PyMem_Calloc(row_room, sizeof *self->files);
    if (!self->files)
        return -1;
    self->head = map, self->bytes = table_bytes(row_room, key_room);
    self->row_room = row_room, self->key_room = key_room, self->index_room = row_room / 3 * 4;
    self->rows = (struct location *)(void *)((char *)map + HEAD_BYTES);
    self->file_at = (uint32_t *)(void *)(self->rows + row_room);
    self->index = self->file_at + row_room;
    self->keys = (char *)(self->index + self->index_room);
    return 0;
}

static void locations_forget(Locations *self)
{
    const Locations old = *self;
    self->head = NULL, self->files = NULL, self->segments = NULL;
    self->bytes = self->row_room = self->key_room = self->index_room = 0;
    self->row_count = self->key_count = self->file_count = self->file_bytes = 0;
    self->is_file = self->is_read_only = 0;
    all_bytes -= old.counted_bytes;
    self->counted_bytes = 0;
    for (size_t i = 0; old.files && i < old.row_room; i++)
        Py_XDECREF((PyObject *)old.files[i]);
    PyMem_Free(old.files);
    if (old.head)
        munmap(old.head, old.bytes);
    Py_XDECREF(old.segments);
}

/* What is in use: pages that nothing has been written to take no memory. */
static size_t locations_size(const Locations *self)
{
    return self->row_count * sizeof *self->rows + self->key_count + self->index_room * sizeof *self->index
        + self->file_count * sizeof *self->file_at + self->file_bytes;
}

static uint32_t file_append(Locations *self, const char *path, size_t path_bytes, int is_segment)
{
    struct file_record record = {.path_bytes = (uint16_t)path_bytes, .is_segment = (uint8_t)is_segment};
    record.sum = sum_of(&record, FILE_SUMMED, path, path_bytes);
    memcpy(self->keys + self->key_count, &record, sizeof record);
    memcpy(self->keys + self->key_count + sizeof record, path, path_bytes);
    __atomic_store_n(&self->file_at[self->file_count], (uint32_t)self->key_count, __ATOMIC_RELEASE);
    self->key_count += sizeof record + path_bytes;
    return (uint32_t)self->file_count++;
}

/* Set the row in a slot, which is that of its key. One that is not there yet is appended, with its key. */
static void row_store(Locations *self, uint32_t *slot, struct location *row, const char *key, size_t key_bytes)
{
    const uint16_t kept = (uint16_t)key_bytes;
    const size_t number = *slot ? (*slot & ROW_MASK) - 1 : self->row_count;
    if (!*slot) {
        row->key_at = (uint32_t)self->key_count;
        memcpy(self->keys + self->key_count, &kept, sizeof kept);
        memcpy(self->keys + self->key_count + sizeof kept, key, key_bytes);
        self->key_count += sizeof kept + key_bytes;
        self->row_count++;
    }
    row->sum = sum_of(row, ROW_SUMMED, key, key_bytes);
    memcpy(&self->rows[number], row, sizeof *row);
    __atomic_store_n(slot, (uint32_t)(number + 1) | index_tag(row->hash), __ATOMIC_RELEASE);
}

/* Append a file, and know its number if it is a segment. Returns -1 without memory. */
static int64_t file_add(Locations *self, const char *path, size_t path_bytes, int is_segment)
{
    const uint32_t number = file_append(self, path, path_bytes, is_segment);
    if (!is_segment)
        return number;
    PyObject *const name = PyBytes_FromStringAndSize(path, (Py_ssize_t)path_bytes);
    PyObject *const value = PyLong_FromUnsignedLong(number);
    const int failed = !name || !value || PyDict_SetItem(self->segments, name, value) < 0;
    Py_XDECREF(name);
    Py_XDECREF(value);
    return failed ? -1 : (int64_t)number;
}

/* A move of a table to another mapping, with room for so many bytes of keys more; to a file, or to memory (fd -1). */
struct move {
    Locations to;
    uint32_t *numbers; /* new number + 1 of each file */
    size_t key_bytes;
    int fd;
};

static int move_step(Locations *self, void *with)
{
    struct move *const move = with;
    Locations *const to = &move->to;
    struct location row;
    struct file_record record;
    char path[MAX_PATH_BYTES + 1];
    const char *key;
    size_t bytes, count = 0, key_bytes = move->key_bytes, room = FIRST_ROWS;
    for (size_t i = 0; i < self->row_count; i++) {
        if (!row_load(self, i, &row, &key, &bytes) || row.file == NO_FILE || row.file >= self->row_room)
            continue;
        count++, key_bytes += bytes + sizeof(uint16_t);
        if (!move->numbers[row.file] && file_load(self, row.file, &record, path)) {
            move->numbers[row.file] = 1;
            key_bytes += sizeof record + record.path_bytes;
        }
    }
    while (room < count + count / 2 + 1)
        room *= 2;
    size_t key_room = 2 * key_bytes < FIRST_KEY_BYTES ? FIRST_KEY_BYTES : (2 * key_bytes + 4095) / 4096 * 4096;
    if (room > ROW_MASK || key_room > UINT32_MAX)
        return 1;
    const size_t size = table_bytes(room, key_room);
    if (move->fd >= 0 && (errno = posix_fallocate(move->fd, 0, (off_t)size)))
        return 1; /* also before a mapping can lack the room */
    void *const map = mmap(NULL, size, PROT_READ | PROT_WRITE, move->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                           move->fd, 0);
    if (move->fd < 0 && map != MAP_FAILED && size >= HUGE_BYTES)
        madvise(map, size, MADV_HUGEPAGE);
    if (table_take(to, map, room, key_room) < 0 || !(to->segments = PyDict_New())) {
        if (map != MAP_FAILED && !to->head)
            munmap(map, size);
        PyErr_NoMemory();
        return -1;
    }
    to->seed = hash_seed;
    to->key_count = sizeof(uint64_t); /* no record is at 0 */
    to->is_file = move->fd >= 0;
    memset(move->numbers, 0, self->row_room * sizeof *move->numbers);
    for (size_t i = 0; i < self->row_count; i++) {
        if (!row_load(self, i, &row, &key, &bytes) || row.file >= self->row_room
            || row.sum != sum_of(&row, ROW_SUMMED, key, bytes))
            continue;
        uint32_t *const number = &move->numbers[row.file];
        if (!*number) {
            if (!file_load(self, row.file, &record, path))
                continue;
            const int64_t added = file_add(to, path, record.path_bytes, record.is_segment);
            if (added < 0)
                return -1;
            *number = (uint32_t)added + 1;
            if ((to->files[*number - 1] = self->files[row.file]))
                to->file_bytes += FILE_BYTES;
            self->files[row.file] = NULL;
        }
        row.file = *number - 1;
        row.hash = key_hash(to->seed, key, bytes, "", 0);
        struct location there;
        uint32_t *const slot = location_slot(to, row.hash, key, bytes, "", 0, &there);
        if (slot && !*slot)
            row_store(to, slot, &row, key, bytes);
    }
    *to->head = (struct head){.seed = to->seed, .row_room = room, .key_room = key_room};
    memcpy(to->head->magic, table_magic, sizeof table_magic);
    return 0;
}

/* Returns 1 if there is no room for it there, and the table stays where it is. */
static int locations_move(Locations *self, int fd, size_t key_bytes)
{
    struct move move = {.key_bytes = key_bytes, .fd = fd};
    move.numbers = PyMem_Calloc(self->row_room + 1, sizeof *move.numbers);
    if (!move.numbers) {
        PyErr_NoMemory();
        return -1;
    }
    const char was_file = self->is_file;
    self->is_file |= fd >= 0;
    int moved = guarded(move_step, self, &move);
    self->is_file = was_file;
    PyMem_Free(move.numbers);
    if (moved == BROKEN) {
        locations_forget(self);
        moved = 1;
    }
    if (moved) {
        locations_forget(&move.to);
        return moved;
    }
    const size_t first = offsetof(Locations, segments); /* what is before counts references, meanwhile too */
    move.to.dirfd = self->dirfd, move.to.limit_bytes = self->limit_bytes;
    locations_forget(self);
    memcpy((char *)self + first, (char *)&move.to + first, sizeof *self - first);
    return 0;
}

/* Room for one more row, whose key and path have this size. When that would exceed the limit, forgets everything, or
 * returns 1 if nothing may be forgotten. */
static int locations_make_room(Locations *self, size_t bytes, int may_forget)
{
    const size_t kept = bytes + sizeof(uint16_t) + sizeof(struct file_record), size = locations_size(self);
    all_bytes += size - self->counted_bytes;
    self->counted_bytes = size;
    int is_full = all_bytes > self->limit_bytes && size > self->limit_bytes / table_count;
    if (!is_full && self->row_count < self->row_room && self->file_count < self->row_room
        && self->key_count + kept <= self->key_room)
        return 0;
    if (!is_full && (is_full = locations_move(self, -1, kept)) <= 0)
        return is_full;
    if (!may_forget)
        return 1;
    locations_forget(self);
    return locations_move(self, -1, kept);
}

/* The number of the file of an entry. The objects of a segment share one. */
static int64_t file_of_entry(Locations *self, const char *path, size_t path_bytes, int64_t offset)
{
    const char *const end = offset ? memrchr(path, '/', path_bytes) : NULL;
    if (!end)
        return file_add(self, path, path_bytes, 0);
    PyObject *const name = PyBytes_FromStringAndSize(path, end - path);
    PyObject *const value = name ? PyDict_GetItemWithError(self->segments, name) : NULL;
    const int64_t number = value ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(name);
    return value || PyErr_Occurred() ? number : file_add(self, path, (size_t)(end - path), 1);
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

struct pair {
    const char *key;
    size_t key_bytes;
    const struct stored *stored; /* NULL: remove the location */
    int replace;
};

static int pair_step(Locations *self, void *with)
{
    const struct pair *const pair = with;
    const struct stored *const stored = pair->stored;
    const uint32_t hash = key_hash(self->seed, pair->key, pair->key_bytes, "", 0);
    struct location row;
    uint32_t *const slot = location_slot(self, hash, pair->key, pair->key_bytes, "", 0, &row);
    if (!slot)
        return BROKEN;
    if (!stored) {
        if (*slot) {
            struct location *const there = &self->rows[(*slot & ROW_MASK) - 1];
            __atomic_store_n(&there->file, NO_FILE, __ATOMIC_RELEASE);
        }
        return 0;
    }
    if (*slot && !pair->replace && row.file < self->row_room && self->file_at[row.file])
        return 0;
    const int64_t file = file_of_entry(self, stored->path, stored->path_bytes, (int64_t)stored->offset);
    if (file < 0)
        return -1;
    row.file = (uint32_t)file, row.hash = hash;
    row.offset = (uint32_t)stored->offset, row.size = (uint32_t)stored->size, row.checksum = stored->checksum;
    const int fits = !(stored->epoch >> (32 - NODE_BITS) | stored->node >> NODE_BITS);
    row.counter = stored->counter, row.origin = fits ? stored->epoch << NODE_BITS | stored->node : 0;
    row_store(self, slot, &row, pair->key, pair->key_bytes);
    return 0;
}

/* Keep what a catalog value says of its object. Tombstones and large objects are not kept, nor are long keys, nor
 * values that only format.decode_entry can judge. Returns 1 if the memory is full and nothing may be forgotten. */
static int add_stored(Locations *self, PyObject *key, PyObject *value, int replace, int may_forget)
{
    const size_t value_bytes = (size_t)PyBytes_Size(value);
    const struct stored *const stored = (const struct stored *)PyBytes_AsString(value);
    struct pair pair = {PyBytes_AsString(key), (size_t)PyBytes_Size(key), stored, replace};
    if (pair.key_bytes > MAX_KEY_BYTES || value_bytes < sizeof *stored || stored->format != STORED_FORMAT
        || stored->kind != OBJECT_KIND || !stored->path_bytes || stored->size > MAX_LOCATED_BYTES
        || stored->offset > UINT32_MAX || stored->path_bytes > MAX_PATH_BYTES
        || value_bytes < sizeof *stored + stored->path_bytes + stored->writes_bytes
        || memchr(stored->path, 0, stored->path_bytes))
        return 0;
    const int full = locations_make_room(self, pair.key_bytes + stored->path_bytes, may_forget);
    if (full)
        return full;
    const int result = guarded(pair_step, self, &pair);
    if (result == BROKEN)
        locations_forget(self);
    return result == BROKEN ? 0 : result;
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
    PyObject *key = NULL, *value = NULL;
    int are_bytes = 1;
    TABLES_LOCK();
    for (Py_ssize_t i = 0; i < count && !full && !PyErr_Occurred(); i++) {
        key = PyTuple_GetItem(keys, i), value = PyTuple_GetItem(values, i);
        if (value == Py_None)
            continue;
        if (!(are_bytes = PyBytes_Check(key) && PyBytes_Check(value)))
            break;
        full = add_stored((Locations *)self, key, value, replace, may_forget);
    }
    TABLES_UNLOCK();
    if (!are_bytes)
        PyErr_Format(PyExc_TypeError, "keys and values must be bytes, not %R and %R", Py_TYPE(key), Py_TYPE(value));
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
            struct pair pair = {PyBytes_AsString(key), (size_t)PyBytes_Size(key), NULL, 0};
            TABLES_LOCK();
            if (table->head && guarded(pair_step, table, &pair) == BROKEN)
                locations_forget(table);
            TABLES_UNLOCK();
        }
        Py_DECREF(key);
        if (PyErr_Occurred())
            break;
    }
    Py_DECREF(iterator);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static int drop_step(Locations *self, void *with)
{
    __atomic_store_n(&self->file_at[*(const size_t *)with], 0, __ATOMIC_RELEASE);
    __atomic_add_fetch(&self->head->drops, 1, __ATOMIC_RELEASE);
    return 0;
}

static PyObject *locations_drop(PyObject *self, PyObject *path)
{
    Locations *const table = (Locations *)self;
    if (!PyBytes_Check(path))
        return PyErr_Format(PyExc_TypeError, "a path must be bytes, not %R", Py_TYPE(path));
    TABLES_LOCK();
    PyObject *const value = table->segments ? PyDict_GetItemWithError(table->segments, path) : NULL;
    if (value) {
        size_t number = PyLong_AsSize_t(value);
        if (table->files[number]) {
            stored_file_drop(table->files[number]);
            Py_CLEAR(table->files[number]);
        }
        if (PyDict_DelItem(table->segments, path) == 0 && guarded(drop_step, table, &number) == BROKEN)
            locations_forget(table);
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

/* Drop the files that whoever changes a table has dropped: a mapping would keep their bytes. */
static void locations_sweep(Locations *self)
{
    const uint64_t drops = __atomic_load_n(&self->head->drops, __ATOMIC_ACQUIRE);
    if (!self->is_read_only || drops == self->drops)
        return;
    self->drops = drops;
    for (size_t number = 0; number < self->row_room; number++)
        if (self->files[number] && !self->file_at[number]) {
            stored_file_drop(self->files[number]);
            Py_CLEAR(self->files[number]);
        }
}

static PyObject *locations_share(PyObject *self, PyObject *fd)
{
    const int file = PyObject_AsFileDescriptor(fd);
    TABLES_LOCK();
    const int moved = file < 0 ? -1 : locations_move((Locations *)self, file, 0);
    TABLES_UNLOCK();
    return moved < 0 ? NULL : PyBool_FromLong(!moved);
}

/* Returns 1 for a file that has not the form of a table. */
static int table_map(Locations *table, int fd)
{
    struct head head;
    struct stat status;
    locations_forget(table);
    if (pread(fd, &head, sizeof head, 0) != sizeof head || fstat(fd, &status) < 0 || head.row_room > ROW_MASK
        || head.row_room < FIRST_ROWS || head.row_room % 3 || head.row_room / 3 & (head.row_room / 3 - 1)
        || head.key_room < FIRST_KEY_BYTES || head.key_room > UINT32_MAX || memcmp(head.magic, table_magic, 8)
        || (uint64_t)status.st_size != table_bytes(head.row_room, head.key_room))
        return 1;
    void *const map = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (table_take(table, map, head.row_room, head.key_room) < 0) {
        if (map != MAP_FAILED)
            munmap(map, (size_t)status.st_size);
        return 1;
    }
    table->seed = head.seed, table->drops = head.drops;
    table->is_file = table->is_read_only = 1;
    return 0;
}

static PyObject *locations_map(PyObject *self, PyObject *descriptor)
{
    const int fd = PyObject_AsFileDescriptor(descriptor);
    if (fd < 0)
        return NULL;
    TABLES_LOCK();
    const int failed = table_map((Locations *)self, fd);
    TABLES_UNLOCK();
    return PyBool_FromLong(!failed);
}

struct column {
    const char *name, *formats, *type;
    Py_ssize_t itemsize;
};

/* A view of a column of so many items. */
static int column_open(const struct column *column, PyObject *source, int flags, Py_buffer *view, Py_ssize_t count)
{
    if (PyObject_GetBuffer(source, view, flags) < 0)
        return -1;
    const char *format = view->format ? view->format : "B";
    format += *format == '@';
    if (!*format || format[1] || !strchr(column->formats, *format) || view->itemsize != column->itemsize)
        PyErr_Format(PyExc_TypeError, "%s must hold native %s items", column->name, column->type);
    else if (view->ndim != 1 || !PyBuffer_IsContiguous(view, 'C'))
        PyErr_Format(PyExc_ValueError, "%s must be one-dimensional and contiguous", column->name);
    else if (view->len / view->itemsize != count)
        PyErr_Format(PyExc_ValueError, "%s has %zd items, and not %zd", column->name, view->len / view->itemsize, count);
    else
        return 0;
    PyBuffer_Release(view);
    return -1;
}

enum { WAVE = 64 }; /* names that are looked up together */

/* Names that are looked up together. */
struct wave {
    Py_ssize_t count;
    const char *head; /* of all keys */
    size_t head_bytes;
    struct wanted {
        const char *text; /* NULL: no object has such a name, and whoever looks it up says so */
        size_t bytes;
        uint32_t hash;
        int dirfd;
        struct location row; /* valid with a file */
        StoredFile *file;
    } names[WAVE];
};

static void wave_open(struct wave *wave, PyObject *names, Py_ssize_t first)
{
    for (Py_ssize_t i = 0; i < wave->count; i++) {
        struct wanted *const one = &wave->names[i];
        PyObject *const name = PyTuple_GetItem(names, first + i);
        Py_ssize_t bytes = 0;
        one->text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, &bytes) : NULL;
        one->bytes = (size_t)bytes;
        one->file = NULL;
        if (!one->text)
            PyErr_Clear();
    }
}

/* In a large table every step of a look-up waits for memory: the index, the row, the key and the file. Each step is
 * announced for all names of a wave before the first one takes it, so that they wait together. */
static void wave_announce(struct wave *wave, const Locations *table)
{
    for (Py_ssize_t i = 0; i < wave->count; i++) {
        struct wanted *const one = &wave->names[i];
        if (one->text && !one->file) {
            one->hash = key_hash(table->seed, wave->head, wave->head_bytes, one->text, one->bytes);
            __builtin_prefetch(index_first(table, one->hash));
        }
    }
    for (int step = 0; step < 2; step++)
        for (Py_ssize_t i = 0; i < wave->count; i++) {
            const struct wanted *const one = &wave->names[i];
            const size_t number = one->text && !one->file ? (*index_first(table, one->hash) & ROW_MASK) - 1u : SIZE_MAX;
            if (number >= table->row_room)
                continue;
            const struct location *const row = &table->rows[number];
            if (!step) {
                __builtin_prefetch(row);
                __builtin_prefetch((const char *)(row + 1) - 1);
            } else if (row->hash == one->hash) {
                __builtin_prefetch(table->keys + row->key_at);
                __builtin_prefetch(table->keys + row->key_at + sizeof(uint16_t) + 63);
                __builtin_prefetch(table->file_at + row->file);
                __builtin_prefetch(table->files + row->file);
            }
        }
}

static int search_step(Locations *table, void *with)
{
    struct wave *const wave = with;
    locations_sweep(table);
    wave_announce(wave, table);
    for (Py_ssize_t i = 0; i < wave->count; i++) {
        struct wanted *const one = &wave->names[i];
        if (!one->text || one->file)
            continue;
        const uint32_t *const slot = location_slot(table, one->hash, wave->head, wave->head_bytes, one->text, one->bytes,
                                                   &one->row);
        if (!slot || !*slot)
            continue;
        if (table->is_file) {
            const uint32_t crc = ~sum_of(&one->row, ROW_SUMMED, wave->head, wave->head_bytes);
            if (~crc_update(crc, (const uint8_t *)one->text, one->bytes) != one->row.sum)
                continue;
        }
        one->file = file_take(table, one->row.file);
        if (!one->file && PyErr_Occurred())
            return -1;
        one->dirfd = table->dirfd;
    }
    return 0;
}

static PyObject *locations_find(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    static const struct column kinds[] = {
        {"dirfds", "i", "int32", 4},     {"offsets", "lq", "int64", 8},   {"sizes", "lq", "int64", 8},
        {"checksums", "I", "uint32", 4}, {"counters", "LQ", "uint64", 8}, {"origins", "I", "uint32", 4},
    };
    const int columns = (int)nargs - 3;
    Py_buffer views[6];
    struct wave wave;
    int opened = 0;
    PyObject *files = NULL;
    (void)module;
    if (columns != 4 && columns != 6)
        return PyErr_Format(PyExc_TypeError, "find takes 7 or 9 positional arguments, got %zd", nargs);
    if (!PyTuple_Check(args[0]) || !PyBytes_Check(args[1]) || !PyList_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "find takes a tuple of tables, bytes and a list of names");
    PyObject *const tables = args[0];
    wave.head = PyBytes_AsString(args[1]), wave.head_bytes = (size_t)PyBytes_Size(args[1]);
    const Py_ssize_t searched = PyTuple_Size(tables);
    for (Py_ssize_t t = 0; t < searched; t++)
        if (Py_TYPE(PyTuple_GetItem(tables, t)) != LocationsType)
            return PyErr_Format(PyExc_TypeError, "tables must be Locations");
    PyObject *const names = PyList_AsTuple(args[2]); /* which holds their text, and stays as it is */
    if (!names)
        return NULL;
    const Py_ssize_t count = PyTuple_Size(names);
    while (opened < columns
           && column_open(&kinds[opened], args[3 + opened], PyBUF_RECORDS, &views[opened], count) == 0)
        opened++;
    if (opened == columns)
        files = PyList_New(count);
    for (Py_ssize_t first = 0; files && first < count; first += WAVE) {
        wave.count = count - first < WAVE ? count - first : WAVE;
        wave_open(&wave, names, first);
        TABLES_LOCK();
        for (Py_ssize_t t = 0; t < searched && !PyErr_Occurred(); t++) {
            Locations *const table = (Locations *)PyTuple_GetItem(tables, t);
            if (table->head && guarded(search_step, table, &wave) == BROKEN)
                locations_forget(table);
        }
        TABLES_UNLOCK();
        for (Py_ssize_t i = 0; i < wave.count; i++) {
            const struct wanted *const one = &wave.names[i];
            if (one->file) {
                ((int32_t *)views[0].buf)[first + i] = one->dirfd;
                ((int64_t *)views[1].buf)[first + i] = one->row.offset;
                ((int64_t *)views[2].buf)[first + i] = one->row.size;
                ((uint32_t *)views[3].buf)[first + i] = one->row.checksum;
                if (columns == 6)
                    ((uint64_t *)views[4].buf)[first + i] = one->row.counter,
                    ((uint32_t *)views[5].buf)[first + i] = one->row.origin;
            }
            PyList_SetItem(files, first + i, one->file ? (PyObject *)one->file : Py_NewRef(Py_None));
        }
        if (PyErr_Occurred())
            Py_CLEAR(files);
    }
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

static int count_step(Locations *self, void *with)
{
    for (size_t i = 0; i < self->row_room; i++) {
        const uint32_t file = self->rows[i].key_at ? self->rows[i].file : NO_FILE;
        *(Py_ssize_t *)with += file < self->row_room && self->file_at[file];
    }
    return 0;
}

static Py_ssize_t locations_length(PyObject *self)
{
    Py_ssize_t count = 0;
    TABLES_LOCK();
    if (((Locations *)self)->head)
        guarded(count_step, (Locations *)self, &count);
    TABLES_UNLOCK();
    return count;
}

static PyMemberDef locations_members[] = {
    {"is_shared", T_BOOL, offsetof(Locations, is_file), READONLY, "Whether the table is in a file."},
    {"room", T_PYSSIZET, offsetof(Locations, row_room), READONLY, "Number of locations for which there is room."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef locations_methods[] = {
    {"add", locations_add, METH_VARARGS, "See _native.pyi."},
    {"remove", locations_remove, METH_O, "See _native.pyi."},
    {"drop", locations_drop, METH_O, "See _native.pyi."},
    {"clear", locations_clear, METH_NOARGS, "See _native.pyi."},
    {"share", locations_share, METH_O, "See _native.pyi."},
    {"map", locations_map, METH_O, "See _native.pyi."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot locations_slots[] = {
    {Py_tp_new, (void *)locations_new},
    {Py_tp_dealloc, (void *)locations_dealloc},
    {Py_tp_methods, locations_methods},
    {Py_tp_members, locations_members},
    {Py_sq_length, (void *)locations_length},
    {Py_tp_doc, "See _native.pyi."},
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
