/* Remembers what a power cut could not take away: preloaded into a process that writes.
 *
 * POSIX promises two things only. After fsync(file), the bytes that had been written to it. After fsync(folder), the
 * names that were in it. This library stands in front of fsync and fdatasync and, when the real one has succeeded,
 * appends to a journal what it made last; power_kit.py turns the journal into the tree that a power cut leaves.
 *
 *     F <inode> <moment> <size> <hex of the identity attribute, or ->
 *     D <inode> <moment> <entries>    followed by one line for each entry, and by a line "E":
 *       f <inode> <hex name> | d <inode> <hex name> | l <hex target> <hex name>
 *
 * Sizes and names are those from before the call: what comes in meanwhile may or may not be covered by it. Of two calls
 * side by side the one that looked first may end last; moments are numbers in the order of looking. Every file
 * that is mentioned is pinned by a hard link, inodes/<inode>, so that its bytes outlive an unlink and its number is not
 * given to another.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

static int journal = -1, pins = -1;
static dev_t device;
static unsigned long moment; /* guarded by lock */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct text {
    char *at;
    size_t used, room;
};

static void add(struct text *text, const char *format, ...)
{
    for (;;) {
        va_list arguments;
        va_start(arguments, format);
        const int wanted = vsnprintf(text->at + text->used, text->room - text->used, format, arguments);
        va_end(arguments);
        if ((size_t)wanted < text->room - text->used) {
            text->used += (size_t)wanted;
            return;
        }
        text->room = 2 * text->room + (size_t)wanted + 1;
        text->at = realloc(text->at, text->room);
        if (!text->at)
            abort();
    }
}

static void add_hex(struct text *text, const void *bytes, size_t count)
{
    if (!count)
        add(text, "-");
    for (size_t i = 0; i < count; i++)
        add(text, "%02x", ((const unsigned char *)bytes)[i]);
}

static void append(struct text *text)
{
    if (write(journal, text->at, text->used) != (ssize_t)text->used)
        abort(); /* a test that remembers half of it would accuse the store */
    free(text->at);
}

/* The inode that a name stands for, pinned; 0 when the name is gone. The caller holds the lock. */
static ino_t pin(int folder, const char *name, int flags)
{
    struct stat found;
    char final[32];
    unlinkat(pins, "new", 0);
    if (linkat(folder, name, pins, "new", flags) || fstatat(pins, "new", &found, AT_SYMLINK_NOFOLLOW))
        return 0;
    snprintf(final, sizeof final, "%lu", (unsigned long)found.st_ino);
    if (linkat(pins, "new", pins, final, 0) && errno != EEXIST)
        abort();
    unlinkat(pins, "new", 0);
    return found.st_ino;
}

static void describe_folder(int fd, const struct stat *folder, struct text *text)
{
    struct text entries = {0};
    size_t count = 0;
    const int again = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *listing = again < 0 ? NULL : fdopendir(again);
    if (!listing)
        abort();
    for (struct dirent *entry; (entry = readdir(listing));) {
        struct stat found;
        char target[4096];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (fstatat(fd, entry->d_name, &found, AT_SYMLINK_NOFOLLOW))
            continue;
        if (S_ISLNK(found.st_mode)) {
            const ssize_t length = readlinkat(fd, entry->d_name, target, sizeof target);
            add(&entries, "l ");
            add_hex(&entries, target, length < 0 ? 0 : (size_t)length);
        } else if (S_ISDIR(found.st_mode)) {
            add(&entries, "d %lu", (unsigned long)found.st_ino);
        } else {
            const ino_t inode = pin(fd, entry->d_name, 0);
            if (!inode)
                continue;
            add(&entries, "f %lu", (unsigned long)inode);
        }
        add(&entries, " ");
        add_hex(&entries, entry->d_name, strlen(entry->d_name));
        add(&entries, "\n");
        count++;
    }
    closedir(listing);
    add(text, "D %lu %lu %zu\n%sE\n", (unsigned long)folder->st_ino, ++moment, count, count ? entries.at : "");
    free(entries.at);
}

static void describe_file(int fd, const struct stat *file, struct text *text)
{
    char path[64], identity[4096];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (file->st_nlink && !pin(AT_FDCWD, path, AT_SYMLINK_FOLLOW) && errno != ENOENT)
        abort();
    const ssize_t length = fgetxattr(fd, "user.ais_loader", identity, sizeof identity);
    add(text, "F %lu %lu %lld ", (unsigned long)file->st_ino, ++moment, (long long)file->st_size);
    add_hex(text, identity, length < 0 ? 0 : (size_t)length);
    add(text, "\n");
}

static int sync_and_note(int (*real)(int), int fd)
{
    struct stat found;
    struct text text = {0};
    if (journal < 0 || fstat(fd, &found) || found.st_dev != device)
        return real(fd);
    pthread_mutex_lock(&lock);
    if (fstat(fd, &found)) /* as it is at this moment */
        abort();
    if (S_ISDIR(found.st_mode))
        describe_folder(fd, &found, &text);
    else if (S_ISREG(found.st_mode))
        describe_file(fd, &found, &text);
    pthread_mutex_unlock(&lock);
    const int result = real(fd);
    if (!result && text.used)
        append(&text);
    else
        free(text.at);
    return result;
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return sync_and_note(real, fd);
}

int fdatasync(int fd)
{
    static int (*real)(int);
    if (!real)
        real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return sync_and_note(real, fd);
}

/* Begin to remember, in a folder of the file system that is watched. 0, or an errno. */
int power_shim_begin(const char *shadow)
{
    char path[4096];
    struct stat found;
    snprintf(path, sizeof path, "%s/inodes", shadow);
    pins = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (pins < 0 || fstat(pins, &found))
        return errno;
    device = found.st_dev;
    snprintf(path, sizeof path, "%s/journal", shadow);
    journal = open(path, O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
    return journal < 0 ? errno : 0;
}
