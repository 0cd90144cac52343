/* Writing and checking in one pass: bytes are appended to a file and counted in its checksums, a block at a time, while
 * they are still near. Knows nothing of Python; crc_choose() and joining_choose() come first.
 */
#ifndef AIS_LOADER_COUNTED_WRITE_H
#define AIS_LOADER_COUNTED_WRITE_H

#include <errno.h>
#include <unistd.h>

#include "_crc32c.h"

enum { BLOCK_BYTES = 256 << 10 }; /* as in format.py */

static uint32_t zeros[64]; /* zeros[k]: x^(8 * 2^k) mod P, what 2^k more bytes multiply a remainder by */

static uint32_t crc_multiply(uint32_t a, uint32_t b) /* modulo P; bit 31 is the coefficient of x^0 */
{
    uint32_t product = 0;
    for (; a; a <<= 1) {
        if (a & 0x80000000u)
            product ^= b;
        b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

static void joining_choose(void)
{
    uint32_t power = 0x00800000u; /* x^8 */
    for (int k = 0; k < 64; k++) {
        zeros[k] = power;
        power = crc_multiply(power, power);
    }
}

/* The checksum of a followed by b, from those of both and the length of b. */
static uint32_t crc_join(uint32_t a, uint32_t b, size_t length)
{
    if (!a)
        return b;
    for (int k = 0; length; length >>= 1, k++)
        if (length & 1)
            a = crc_multiply(a, zeros[k]);
    return a ^ b;
}

struct counted {
    int64_t at;        /* bytes of the object so far */
    uint32_t checksum; /* of all of them */
    uint32_t block;    /* of those of the last block */
    uint32_t *closed;  /* where the checksums of blocks go that end */
    size_t ended;      /* how many have */
    int error;         /* errno of the write that failed, or 0 */
};

static void count_piece(struct counted *counted, const uint8_t *data, size_t size)
{
    const uint32_t piece = ~crc_update(~0u, data, size);
    counted->checksum = crc_join(counted->checksum, piece, size);
    counted->block = counted->at % BLOCK_BYTES ? crc_join(counted->block, piece, size) : piece;
    counted->at += (int64_t)size;
    if (counted->at % BLOCK_BYTES == 0)
        counted->closed[counted->ended++] = counted->block;
}

/* Counts `size` bytes, having appended them where fd is one; how many, fewer with `error`. */
static size_t counted_write(struct counted *counted, int fd, const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (done < size && !counted->error) {
        size_t piece = BLOCK_BYTES - (size_t)(counted->at % BLOCK_BYTES), written = 0;
        if (piece > size - done)
            piece = size - done;
        while (fd >= 0 && written < piece) {
            const ssize_t count = write(fd, data + done + written, piece - written);
            if (count > 0) {
                written += (size_t)count;
            } else if (count == 0 || errno != EINTR) {
                counted->error = count == 0 ? EIO : errno;
                piece = written;
            }
        }
        if (piece)
            count_piece(counted, data + done, piece);
        done += piece;
    }
    return done;
}

#endif
