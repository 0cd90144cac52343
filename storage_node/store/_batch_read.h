/* The batch reader without Python: many pieces of many files, each into its place.
 *
 * It only opens, reads and sums; it parses nothing that came from a drive or from the network. There
 * is no lock and no state between calls, so threads may call at will and a fork inherits nothing to
 * repair. Every descriptor opened here is closed before job_read returns, whatever happened.
 *
 * Cold data. Each read first asks for cached bytes only (RWF_NOWAIT): when they are there, that is
 * the one system call of the read. At the first refusal the rest of the job runs cold: a window of
 * entries is opened and announced (POSIX_FADV_WILLNEED) ahead of the blocking reads, because a drive
 * wants a queue. A file system that knows no RWF_NOWAIT (tmpfs, overlayfs, many network ones) is
 * treated as cold. The verdict lasts for one job, as the next may be about another drive; `waited`
 * tells the caller that a drive really was waited for, who may then have the jobs to come announced by
 * other threads (job_announce).
 *
 * Include after Python.h or after defining _GNU_SOURCE.
 */
#ifndef AIS_LOADER_BATCH_READ_H
#define AIS_LOADER_BATCH_READ_H

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#if defined(SYS_openat2) && defined(RWF_NOWAIT) && __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#define HAVE_CACHED_READS 1
#ifndef RESOLVE_CACHED
#define RESOLVE_CACHED 0x20 /* Linux 5.12 */
#endif
#endif

#ifndef __GLIBC__ /* musl has this from 1.2.5 on */
#define preadv2(fd, pieces, count, at, flags) (ssize_t) syscall(SYS_preadv2, fd, pieces, count, (long)(at), 0L, flags)
#endif

#include "_crc32c.h"
#include "_mapped_read.h"

enum { FAIL_OPEN = 1, FAIL_READ = 2, FAIL_SHORT = 3, FAIL_CHECKSUM = 4 };
enum { WINDOW_ENTRIES = 32, ANNOUNCE_BYTES = 1 << 20 }; /* bounds of what runs ahead of a cold read */
enum { STEP_BYTES = 256 << 10 };                        /* read and summed while it is still in the L2 cache */
enum { COPY_BYTES = 2 << 10, AHEAD_BYTES = 64 << 10, CACHE_LINE = 64 };
enum { COPIES = 32 }; /* made between two looks at the faults, and fewer at the beginning */

struct entry {
    const char *path; /* "": dirfd is itself the file, and not ours to close */
    uint8_t *dest;
    off_t offset;
    size_t length;
    int dirfd;
    int fd; /* open descriptor of this entry, or -1 */
    int folder, kept; /* the folder of its path; a descriptor that is not ours, which is `dirfd` then, or -1 */
    uint32_t expected;
    uint8_t verify;
    uint8_t same; /* the same file as the entry before, whose descriptor is handed on */
    uint8_t done; /* copied out of a mapping, and verified */
    const uint8_t *mapped; /* the bytes in a mapping of the file; or NULL */
    void *file;            /* whatever the caller has for it */
};

struct job {
    struct entry *entries;
    ptrdiff_t count;
    ptrdiff_t ahead; /* entries before this one need no announcement any more */
    int cold;
    int waited; /* bytes were not cached, and had to come from a drive */
    int mapped; /* some entries are mapped */
    int faulted; /* a copy out of a mapping waited for a drive, or could not be made */
    uint8_t *sums; /* where the checksums go, little-endian; or NULL */
    ptrdiff_t failed_at;
    int code, error; /* of the failure; code 0: none */
};

static int entry_open(const struct entry *entry)
{
    int fd;
    if (!*entry->path)
        return entry->dirfd;
    do
        fd = openat(entry->dirfd, entry->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* Hand the descriptor on to the next entry, or close it: it never belongs to two entries. */
static void entry_release(const struct job *job, ptrdiff_t i)
{
    struct entry *entry = &job->entries[i];
    if (i + 1 < job->count && entry[1].same)
        entry[1].fd = entry->fd;
    else if (*entry->path)
        close(entry->fd); /* read only: nothing is lost when close fails */
    entry->fd = -1;
}

/* Open and announce up to a window of entries from `i` on. A failed open ends the window: the entry
 * is tried again, and reported, when its turn comes, and where descriptors are scarce those that are
 * free go to the entries that are read first. */
static void look_ahead(struct job *job, ptrdiff_t i)
{
    const ptrdiff_t stop = job->count - i < WINDOW_ENTRIES ? job->count : i + WINDOW_ENTRIES;
    if (job->ahead < i)
        job->ahead = i;
    for (; job->ahead < stop; job->ahead++) {
        struct entry *entry = &job->entries[job->ahead];
        if (entry->fd < 0 && entry->same) /* also if it is done: entries after it may need the descriptor */
            entry->fd = entry[-1].fd;
        if (entry->done)
            continue;
        if (entry->fd < 0)
            entry->fd = entry_open(entry);
        if (entry->fd < 0)
            return;
        if (entry->length)
            posix_fadvise(entry->fd, entry->offset,
                          entry->length < ANNOUNCE_BYTES ? (off_t)entry->length : ANNOUNCE_BYTES, POSIX_FADV_WILLNEED);
    }
}

/* Reads what the page cache has. Fails with EAGAIN if that is nothing, or because the file system cannot tell. */
static ssize_t read_now(int fd, void *dest, size_t size, off_t offset)
{
#ifdef RWF_NOWAIT
    struct iovec piece = {dest, size};
    return preadv2(fd, &piece, 1, offset, RWF_NOWAIT);
#else
    (void)fd, (void)dest, (void)size, (void)offset;
    errno = EOPNOTSUPP;
    return -1;
#endif
}

static ssize_t read_some(struct job *job, ptrdiff_t i, size_t done, size_t size)
{
    const struct entry *entry = &job->entries[i];
    const off_t offset = entry->offset + (off_t)done;
    for (;;) {
        ssize_t got;
        if (!job->cold) {
            got = read_now(entry->fd, entry->dest + done, size, offset);
            if (got < 0 && (errno == EAGAIN || errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)) {
                job->waited |= errno == EAGAIN;
                job->cold = 1;
                look_ahead(job, i);
                continue;
            }
        } else {
            got = pread(entry->fd, entry->dest + done, size, offset);
        }
        if (got >= 0 || errno != EINTR)
            return got;
    }
}

static int read_entry(struct job *job, ptrdiff_t i)
{
    struct entry *entry = &job->entries[i];
    const int sum = entry->verify || job->sums;
    uint32_t crc = 0xFFFFFFFFu;
    if (entry->fd < 0)
        entry->fd = entry_open(entry);
    if (entry->fd < 0 && *entry->path) {
        job->error = errno;
        return FAIL_OPEN;
    }
    for (size_t done = 0; done < entry->length;) {
        const size_t left = entry->length - done;
        const ssize_t got = read_some(job, i, done, left < STEP_BYTES ? left : STEP_BYTES);
        if (got < 0)
            job->error = errno;
        if (got <= 0)
            return got ? FAIL_READ : FAIL_SHORT;
        if (sum)
            crc = crc_update(crc, entry->dest + done, (size_t)got);
        done += (size_t)got;
    }
    crc = ~crc;
    if (entry->verify && crc != entry->expected)
        return FAIL_CHECKSUM;
    if (job->sums)
        for (int byte = 0; byte < 4; byte++)
            job->sums[4 * i + byte] = (uint8_t)(crc >> 8 * byte);
    return 0;
}

static int copy_entry(const struct job *job, ptrdiff_t i)
{
    const struct entry *entry = &job->entries[i];
    const struct entry *next = i + 1 < job->count && entry[1].mapped ? entry + 1 : entry;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t done = 0; done < entry->length;) {
        const size_t left = entry->length - done, size = left < COPY_BYTES ? left : COPY_BYTES;
        /* Objects in a random order are nowhere near the caches: the next one comes while this one is copied.
         * (In a function of its own, GCC would take this for nothing and leave it out.) */
        for (size_t at = done; at < next->length && at < done + size && at < AHEAD_BYTES; at += CACHE_LINE)
            __builtin_prefetch(next->mapped + at, 0, 2);
        crc = crc_copy(crc, entry->dest + done, entry->mapped + done, size);
        done += size;
    }
    crc = ~crc;
    if (entry->verify && crc != entry->expected)
        return 0;
    if (job->sums)
        for (int byte = 0; byte < 4; byte++)
            job->sums[4 * i + byte] = (uint8_t)(crc >> 8 * byte);
    return 1;
}

/* Copy what is mapped, as long as nothing has to be waited for. What is not `done` then is read by job_read,
 * which also finds out what is wrong with it. */
static void job_copy(struct job *job)
{
    sigjmp_buf start;
    const volatile long before = major_faults();
    if (sigsetjmp(start, 0)) {
        copying = NULL;
        job->faulted = 1;
        return;
    }
    copying = &start;
    for (ptrdiff_t i = 0, copies = 0; i < job->count; i++) {
        struct entry *entry = &job->entries[i];
        if (!entry->mapped)
            continue;
        entry->done = (uint8_t)copy_entry(job, i);
        copies++;
        if ((copies % COPIES == 0 || copies == 1 || copies == 8) && major_faults() != before)
            break;
    }
    copying = NULL;
    job->faulted = major_faults() != before;
}

static void job_read(struct job *job)
{
    ptrdiff_t i = 0;
    if (job->mapped)
        job_copy(job);
    for (; i < job->count && !job->code; i++) {
        if (job->entries[i].done) {
            if (job->entries[i].fd >= 0)
                entry_release(job, i);
            continue;
        }
        if (job->cold)
            look_ahead(job, i);
        job->code = read_entry(job, i);
        job->failed_at = i;
        if (job->entries[i].fd >= 0)
            entry_release(job, i);
    }
    for (; i < job->count; i++) /* after a failure: what was opened ahead, or handed on */
        if (job->entries[i].fd >= 0)
            entry_release(job, i);
}

static int is_cold(int fd, off_t offset)
{
    char byte;
    return read_now(fd, &byte, 1, offset) < 0 && errno == EAGAIN;
}

/* Have the kernel fetch what is not in the page cache, judged by first and last byte; bytes asked for.
 * Waits for folders and for room in a drive's queue, not for the bytes. An entry that cannot be opened
 * is left to whoever reads it; a file system that knows no RWF_NOWAIT is asked for nothing. */
static int64_t job_announce(struct job *job)
{
    int64_t announced = 0;
    for (ptrdiff_t i = 0; i < job->count; i++) {
        struct entry *entry = &job->entries[i];
        if (entry->fd < 0 && entry->length)
            entry->fd = entry_open(entry);
        if (entry->fd < 0)
            continue;
        if (is_cold(entry->fd, entry->offset)
            || is_cold(entry->fd, entry->offset + (off_t)entry->length - 1)) {
            posix_fadvise(entry->fd, entry->offset, (off_t)entry->length, POSIX_FADV_WILLNEED);
            announced += (int64_t)entry->length;
        }
        entry_release(job, i);
    }
    return announced;
}

/* Open a file only if none of its folders has to be waited for. Returns -1 otherwise. */
static int open_if_cached(int dirfd, const char *path)
{
#ifdef HAVE_CACHED_READS
    struct open_how how = {.flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW, .resolve = RESOLVE_CACHED};
    return (int)syscall(SYS_openat2, dirfd, path, &how, sizeof how);
#else
    (void)dirfd, (void)path;
    return -1;
#endif
}

/* Read and check a whole small file only if nothing has to be waited for: neither its folders nor its
 * bytes. 1 when that went well; 0 for everything else, from cold data to a wrong checksum. */
static int read_if_cached(int dirfd, const char *path, int64_t offset, uint8_t *dest, size_t length,
                          uint32_t expected)
{
    const int fd = open_if_cached(dirfd, path);
    if (fd < 0)
        return 0;
    const ssize_t got = length ? read_now(fd, dest, length, (off_t)offset) : 0;
    close(fd);
    return got == (ssize_t)length && (crc_update(0xFFFFFFFFu, dest, length) ^ 0xFFFFFFFFu) == expected;
}

#endif
