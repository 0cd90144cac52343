/* A machine whose wall clock jumps and whose drives are full at a word: preloaded into a process that runs on it.
 *
 *     SOAK_SHIM_STATE    a file of two 64-bit numbers: nanoseconds that the wall clock is ahead, and whether drives are full
 *     SOAK_SHIM_FOLDER   absolute, without symbolic links; files below it are the drives'
 *
 * Clocks that do not follow the wall are left alone. On a full drive what makes a file longer fails with ENOSPC.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *state;
static const char *folder;
static size_t folder_length;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SOAK_SHIM_STATE");
    folder = getenv("SOAK_SHIM_FOLDER");
    folder_length = folder ? strlen(folder) : 0;
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *found = mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    state = found == MAP_FAILED ? NULL : found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (!result && state && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        const int64_t ahead_ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + state[0];
        now->tv_sec = ahead_ns / 1000000000;
        now->tv_nsec = ahead_ns % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec found;
    (void)zone;
    const int result = clock_gettime(CLOCK_REALTIME, &found);
    if (!result) {
        now->tv_sec = found.tv_sec;
        now->tv_usec = found.tv_nsec / 1000;
    }
    return result;
}

time_t time(time_t *to)
{
    struct timespec found = {0, 0};
    clock_gettime(CLOCK_REALTIME, &found);
    if (to)
        *to = found.tv_sec;
    return found.tv_sec;
}

static int is_full(int fd)
{
    char link[64], path[4096];
    if (!state || !state[1] || !folder_length)
        return 0;
    const int kept = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    errno = kept;
    if (length <= 0)
        return 0;
    path[length] = 0;
    if (strncmp(path, folder, folder_length) || path[folder_length] != '/')
        return 0;
    errno = ENOSPC;
    return 1;
}

#define GROWING(result, name, declared, given, ...)                    \
    result name declared                                               \
    {                                                                  \
        static result (*real)(__VA_ARGS__);                            \
        if (!real)                                                     \
            real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);   \
        return is_full(fd) ? -1 : real given;                          \
    }

GROWING(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), int, const void *, size_t)
GROWING(ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count), int, const struct iovec *, int)
GROWING(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at), int, const void *, size_t,
        off_t)
GROWING(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at), int, const void *,
        size_t, off64_t)
GROWING(int, fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size), int, int, off_t, off_t)
GROWING(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), int, int, off64_t, off64_t)
GROWING(int, posix_fallocate, (int fd, off_t at, off_t size), (fd, at, size), int, off_t, off_t)
