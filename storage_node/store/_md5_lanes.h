/* MD5 (RFC 1321) of several byte streams at once: each takes one lane of a register, since the steps of one stream wait
 * for each other and leave most of a core idle. Needs AVX-512VL, which rotates a register in one step; has_md5_lanes()
 * tells. Knows nothing of Python.
 */
#ifndef AIS_LOADER_MD5_LANES_H
#define AIS_LOADER_MD5_LANES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { MD5_BLOCK = 64, MD5_LANES = 8 };

struct md5_state {
    uint32_t words[4];
    uint64_t size_bytes; /* of the stream so far; the last size_bytes % 64 of them are in `rest` */
    uint8_t rest[MD5_BLOCK];
};

struct md5_piece {
    const uint8_t *data;
    size_t size;
};

/* A stream, and the bytes by which it advances. */
struct md5_job {
    struct md5_state state;
    const struct md5_piece *pieces;
    size_t count, piece, at; /* pieces; the one that is read next, and the position in it */
    const uint8_t *data;     /* whole blocks that lie together */
    size_t blocks;
};

/* Finds the next blocks that lie together. 0: there are none, and what is left is in `rest`. */
static int md5_next(struct md5_job *job)
{
    struct md5_state *const state = &job->state;
    for (; job->piece < job->count; job->piece++, job->at = 0) {
        const struct md5_piece *const piece = &job->pieces[job->piece];
        while (job->at < piece->size) {
            const size_t held = state->size_bytes % MD5_BLOCK, left = piece->size - job->at;
            if (!held && left >= MD5_BLOCK) {
                job->data = piece->data + job->at;
                job->blocks = left / MD5_BLOCK;
                job->at += job->blocks * MD5_BLOCK;
                state->size_bytes += job->blocks * MD5_BLOCK;
                return 1;
            }
            const size_t taken = left < MD5_BLOCK - held ? left : MD5_BLOCK - held;
            memcpy(state->rest + held, piece->data + job->at, taken);
            job->at += taken;
            state->size_bytes += taken;
            if (held + taken == MD5_BLOCK) {
                job->data = state->rest;
                job->blocks = 1;
                return 1;
            }
        }
    }
    return 0;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define MD5_WIDE __attribute__((target("avx2,avx512f,avx512vl")))
typedef uint32_t md5_vector __attribute__((vector_size(4 * MD5_LANES)));

static int has_md5_lanes(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl"); }

static const uint32_t md5_sines[64] = {
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
};

/* Eight words of each of eight lanes: rows of lanes become rows of words. */
MD5_WIDE static inline void md5_turn_over(const uint8_t *const *data, size_t at, md5_vector *words)
{
    __m256i a[8], b[8];
    for (int lane = 0; lane < 8; lane++)
        a[lane] = _mm256_loadu_si256((const __m256i *)(const void *)(data[lane] + at));
    for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        words[i] = (md5_vector)_mm256_permute2x128_si256(a[i], a[i + 4], 0x20);
        words[i + 4] = (md5_vector)_mm256_permute2x128_si256(a[i], a[i + 4], 0x31);
    }
}

/* `truth` is the round's function of its three words. The sum begins with what does not wait for the step before. */
#define MD5_STEP(i, round, x, y, z, truth, word, turn)                                                                \
    {                                                                                                                 \
        const md5_vector sum = a + (words[(word) % 16] + md5_sines[16 * (round) + (i)])                               \
            + (md5_vector)_mm256_ternarylogic_epi32((__m256i)(x), (__m256i)(y), (__m256i)(z), truth);                 \
        a = d, d = c, c = b;                                                                                          \
        b += (md5_vector)_mm256_rol_epi32((__m256i)sum, turn);                                                        \
    }
#define MD5_ROUND(round, x, y, z, truth, first, step, turn0, turn1, turn2, turn3)                                     \
    _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)                                                          \
    {                                                                                                                 \
        MD5_STEP(i, round, x, y, z, truth, (first) + (step) * i, turn0)                                               \
        MD5_STEP(i + 1, round, x, y, z, truth, (first) + (step) * (i + 1), turn1)                                     \
        MD5_STEP(i + 2, round, x, y, z, truth, (first) + (step) * (i + 2), turn2)                                     \
        MD5_STEP(i + 3, round, x, y, z, truth, (first) + (step) * (i + 3), turn3)                                     \
    }

/* Advances eight lanes by `blocks` blocks. */
MD5_WIDE static void md5_blocks(md5_vector *state, const uint8_t *const *data, size_t blocks)
{
    md5_vector words[16];
    for (size_t at = 0; at < blocks * MD5_BLOCK; at += MD5_BLOCK) {
        md5_turn_over(data, at, words);
        md5_turn_over(data, at + MD5_BLOCK / 2, words + 8);
        md5_vector a = state[0], b = state[1], c = state[2], d = state[3];
        MD5_ROUND(0, b, c, d, 0xca, 0, 1, 7, 12, 17, 22) /* b ? c : d */
        MD5_ROUND(1, d, b, c, 0xca, 1, 5, 5, 9, 14, 20)  /* d ? b : c */
        MD5_ROUND(2, b, c, d, 0x96, 5, 3, 4, 11, 16, 23) /* b ^ c ^ d */
        MD5_ROUND(3, b, c, d, 0x39, 0, 7, 6, 10, 15, 21) /* c ^ (b | ~d) */
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    }
}

/* Advances all streams to the end of their pieces. */
static void md5_run(struct md5_job *jobs, size_t count)
{
    struct md5_job *lanes[MD5_LANES];
    size_t active = 0, next = 0;
    for (;;) {
        while (active < MD5_LANES && next < count) {
            if (md5_next(&jobs[next]))
                lanes[active++] = &jobs[next];
            next++;
        }
        if (!active)
            return;
        size_t blocks = lanes[0]->blocks;
        const uint8_t *data[MD5_LANES];
        uint32_t words[4][MD5_LANES];
        md5_vector state[4];
        for (size_t lane = 0; lane < MD5_LANES; lane++) {
            struct md5_job *const job = lanes[lane < active ? lane : 0]; /* idle lanes repeat the first */
            data[lane] = job->data;
            if (job->blocks < blocks)
                blocks = job->blocks;
            for (int i = 0; i < 4; i++)
                words[i][lane] = job->state.words[i];
        }
        memcpy(state, words, sizeof state);
        md5_blocks(state, data, blocks);
        memcpy(words, state, sizeof state);
        size_t kept = 0;
        for (size_t lane = 0; lane < active; lane++) {
            struct md5_job *const job = lanes[lane];
            for (int i = 0; i < 4; i++)
                job->state.words[i] = words[i][lane];
            job->data += blocks * MD5_BLOCK;
            job->blocks -= blocks;
            if (job->blocks || md5_next(job))
                lanes[kept++] = job;
        }
        active = kept;
    }
}
#else
static int has_md5_lanes(void) { return 0; }
static void md5_run(struct md5_job *jobs, size_t count) { (void)jobs, (void)count, (void)md5_next; }
#endif

#endif
