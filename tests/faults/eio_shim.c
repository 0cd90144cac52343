/* A drive that breaks: preloaded into a process, it fails what that does below a folder while a flag file exists.
 *
 *     EIO_SHIM_FLAG      the file; its contents say what fails: "read", "write" or both ("read write"); empty is both
 *     EIO_SHIM_FOLDER    absolute, without symbolic links; names and descriptors below it are the drive's
 *
 * Reads, writes, opening and changing names fail with EIO. What only looks at names (stat, listing, statvfs) goes on
 * working, as it mostly does on a broken disk, whose inodes are in memory. Memory maps are not covered.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2 };

static const char *folder, *flag;
static size_t folder_length;

__attribute__((constructor)) static void begin(void)
{
    folder = getenv("EIO_SHIM_FOLDER");
    flag = getenv("EIO_SHIM_FLAG");
    folder_length = folder ? strlen(folder) : 0;
}

/* Raw system calls throughout: nothing here may come back here. */
static long raw(long number, long a, long b, long c, long d)
{
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, a, b, c, d);
}

/* Which kinds fail now. */
static int failing(void)
{
    char said[64];
    if (!folder_length || !flag)
        return 0;
    const int kept = errno;
    const int fd = (int)raw(SYS_openat, AT_FDCWD, (long)flag, O_RDONLY | O_CLOEXEC, 0);
    int kinds = 0;
    if (fd >= 0) {
        const long got = raw(SYS_read, fd, (long)said, sizeof said - 1, 0);
        raw(SYS_close, fd, 0, 0, 0);
        said[got > 0 ? got : 0] = 0;
        kinds = (strstr(said, "read") ? READ : 0) | (strstr(said, "write") ? WRITE : 0);
        kinds = kinds ? kinds : READ | WRITE;
    }
    errno = kept;
    return kinds;
}

static int below(const char *path)
{
    return !strncmp(path, folder, folder_length) && (path[folder_length] == '/' || !path[folder_length]);
}

static int is_ours(int fd)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const long length = raw(SYS_readlinkat, AT_FDCWD, (long)link, (long)path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static int name_is_ours(int at, const char *path)
{
    char here[4096];
    if (path[0] == '/')
        return below(path);
    if (at != AT_FDCWD)
        return is_ours(at);
    return getcwd(here, sizeof here) && below(here);
}

static int fails(int kind, int fd)
{
    const int kept = errno;
    const int broken = (failing() & kind) && is_ours(fd);
    errno = broken ? EIO : kept;
    return broken;
}

static int name_fails(int kind, int at, const char *path)
{
    const int kept = errno;
    const int broken = (failing() & kind) && name_is_ours(at, path);
    errno = broken ? EIO : kept;
    return broken;
}

static int kind_of(int flags)
{
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_CREAT | O_TRUNC)) ? READ : WRITE;
}

#define REAL(result, name, ...)                                        \
    static result (*real)(__VA_ARGS__);                                \
    if (!real)                                                         \
        real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define DESCRIPTOR(kind, result, name, declared, given, ...)           \
    result name declared                                               \
    {                                                                  \
        REAL(result, #name, __VA_ARGS__);                              \
        return fails(kind, fd) ? -1 : real given;                      \
    }

DESCRIPTOR(READ, ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), int, void *, size_t)
DESCRIPTOR(READ, ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at), int, void *, size_t, off_t)
DESCRIPTOR(READ, ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at), int, void *, size_t,
           off64_t)
DESCRIPTOR(READ, ssize_t, preadv2, (int fd, const struct iovec *to, int count, off_t at, int flags),
           (fd, to, count, at, flags), int, const struct iovec *, int, off_t, int)
DESCRIPTOR(READ, ssize_t, preadv64v2, (int fd, const struct iovec *to, int count, off64_t at, int flags),
           (fd, to, count, at, flags), int, const struct iovec *, int, off64_t, int)
DESCRIPTOR(WRITE, ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), int, const void *, size_t)
DESCRIPTOR(WRITE, ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count), int,
           const struct iovec *, int)
DESCRIPTOR(WRITE, ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at), int,
           const void *, size_t, off_t)
DESCRIPTOR(WRITE, ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at), int,
           const void *, size_t, off64_t)
DESCRIPTOR(WRITE, int, fsync, (int fd), (fd), int)
DESCRIPTOR(WRITE, int, fdatasync, (int fd), (fd), int)
DESCRIPTOR(WRITE, int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), int, int, off_t, off_t)
DESCRIPTOR(WRITE, int, ftruncate, (int fd, off_t size), (fd, size), int, off_t)
DESCRIPTOR(WRITE, int, fsetxattr, (int fd, const char *name, const void *value, size_t size, int flags),
           (fd, name, value, size, flags), int, const char *, const void *, size_t, int)

#define OPENING(name, first, at, ...)                                  \
    int name(__VA_ARGS__ const char *path, int flags, ...)             \
    {                                                                  \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                  \
        if (name_fails(kind_of(flags), at, path))                      \
            return -1;                                                 \
        return (int)raw(SYS_openat, at, (long)path, flags | O_LARGEFILE, mode); \
    }

OPENING(open, , AT_FDCWD, )
OPENING(open64, , AT_FDCWD, )
OPENING(openat, , folder_fd, int folder_fd,)
OPENING(openat64, , folder_fd, int folder_fd,)

int renameat(int from, const char *old, int to, const char *new)
{
    return name_fails(WRITE, from, old) || name_fails(WRITE, to, new)
               ? -1 : (int)raw(SYS_renameat, from, (long)old, to, (long)new);
}

int rename(const char *old, const char *new)
{
    return renameat(AT_FDCWD, old, AT_FDCWD, new);
}

int unlinkat(int at, const char *path, int flags)
{
    return name_fails(WRITE, at, path) ? -1 : (int)raw(SYS_unlinkat, at, (long)path, flags, 0);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    return name_fails(WRITE, at, path) ? -1 : (int)raw(SYS_mkdirat, at, (long)path, mode, 0);
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

/* How the batch reader opens what is cached. */
long syscall(long number, ...)
{
    va_list rest;
    va_start(rest, number);
    long arguments[6];
    for (int i = 0; i < 6; i++)
        arguments[i] = va_arg(rest, long);
    va_end(rest);
#ifdef SYS_openat2
    if (number == SYS_openat2 && name_fails(READ, (int)arguments[0], (const char *)arguments[1]))
        return -1;
#endif
    static long (*real)(long, ...);
    if (!real)
        real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}
