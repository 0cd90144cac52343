/* A slow drive: preloaded into a process, reads of files below a folder take longer, and nothing of them is cached.
 *
 *     SLOW_READS_FOLDER   absolute, without symbolic links
 *     SLOW_READS_MS       milliseconds that each read takes longer
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static int is_ours(int fd)
{
    char link[64], path[4096];
    const char *folder = getenv("SLOW_READS_FOLDER");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0 || !folder)
        return 0;
    path[length] = 0;
    return !strncmp(path, folder, strlen(folder));
}

static void wait_for_drive(int fd)
{
    const long ms = is_ours(fd) ? atol(getenv("SLOW_READS_MS")) : 0;
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    if (ms)
        nanosleep(&pause, NULL);
}

#define REAL(result, name, ...) result (*real)(__VA_ARGS__) = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t offset, int flags)
{
    REAL(ssize_t, "preadv2", int, const struct iovec *, int, off_t, int);
    if (flags && is_ours(fd)) {
        errno = EAGAIN;
        return -1;
    }
    return real(fd, parts, count, offset, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags)
{
    REAL(ssize_t, "preadv64v2", int, const struct iovec *, int, off64_t, int);
    if (flags && is_ours(fd)) {
        errno = EAGAIN;
        return -1;
    }
    return real(fd, parts, count, offset, flags);
}

ssize_t pread(int fd, void *to, size_t size, off_t offset)
{
    REAL(ssize_t, "pread", int, void *, size_t, off_t);
    wait_for_drive(fd);
    return real(fd, to, size, offset);
}

ssize_t pread64(int fd, void *to, size_t size, off_t offset)
{
    REAL(ssize_t, "pread64", int, void *, size_t, off_t);
    wait_for_drive(fd);
    return real(fd, to, size, offset);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t size)
{
    REAL(ssize_t, "sendfile", int, int, off_t *, size_t);
    wait_for_drive(in);
    return real(out, in, offset, size);
}

ssize_t sendfile64(int out, int in, off_t *offset, size_t size)
{
    REAL(ssize_t, "sendfile64", int, int, off_t *, size_t);
    wait_for_drive(in);
    return real(out, in, offset, size);
}
