/* CRC-32C (RFC 3720, appendix B.4: polynomial 0x1EDC6F41, used bit-reversed) in several ways.
 *
 * crc_choose() builds the tables and points crc_update at the fastest way that this processor has;
 * call it once before anything else. The functions advance a raw register: the inversions at both
 * ends of a checksum belong to the caller. Knows nothing of Python.
 */
#ifndef AIS_LOADER_CRC32C_H
#define AIS_LOADER_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif

#define POLYNOMIAL 0x82F63B78u

static uint32_t table[8][256]; /* table[k][b]: the register after byte b and then k zero bytes */

static uint32_t crc_table(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        crc ^= (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        crc = table[7][crc & 255] ^ table[6][crc >> 8 & 255] ^ table[5][crc >> 16 & 255] ^ table[4][crc >> 24]
            ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
    }
    for (; size; data++, size--)
        crc = crc >> 8 ^ table[0][(crc ^ *data) & 255];
    return crc;
}

static uint32_t (*crc_update)(uint32_t crc, const uint8_t *data, size_t size) = crc_table;
static uint32_t (*crc_lanes)(uint32_t crc, const uint8_t *data, size_t size) = crc_table; /* without wide registers */

static uint32_t crc_table_copy(uint32_t crc, uint8_t *dest, const uint8_t *data, size_t size)
{
    memcpy(dest, data, size);
    return crc_update(crc, dest, size);
}

/* Copies bytes, and advances the register by the copy. */
static uint32_t (*crc_copy)(uint32_t crc, uint8_t *dest, const uint8_t *data, size_t size) = crc_table_copy;

#if defined(__x86_64__)
/* The instruction takes 3 cycles but one may start in each, so three lanes advance together. To join
 * them the first two move past the bytes that follow: a carry-less product with x^(8n - 33) mod P
 * (33 = the 32 bits that the instruction multiplies by, and one bit lost in a reflected product). */
enum { LANE_SIZES = 3 };
static const size_t lane_bytes[LANE_SIZES] = {1024, 256, 64};
static uint64_t past_one[LANE_SIZES], past_two[LANE_SIZES];

static inline uint64_t load64(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_sse42(uint32_t crc, const uint8_t *data, size_t size)
{
    uint64_t first = crc;
    for (int k = 0; k < LANE_SIZES; k++) {
        const size_t lane = lane_bytes[k];
        for (; size >= 3 * lane; size -= 3 * lane, data += 2 * lane) {
            uint64_t second = 0, third = 0;
            for (const uint8_t *end = data + lane; data < end; data += 8) {
                first = _mm_crc32_u64(first, load64(data));
                second = _mm_crc32_u64(second, load64(data + lane));
                third = _mm_crc32_u64(third, load64(data + 2 * lane));
            }
            const __m128i factors = _mm_set_epi64x((long long)past_one[k], (long long)past_two[k]);
            const __m128i a = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)first), factors, 0x00);
            const __m128i b = _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)second), factors, 0x10);
            first = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(a, b))) ^ third;
        }
    }
    for (; size >= 8; data += 8, size -= 8)
        first = _mm_crc32_u64(first, load64(data));
    for (; size; data++, size--)
        first = _mm_crc32_u8((uint32_t)first, *data);
    return (uint32_t)first;
}

#if defined(__clang__) ? __clang_major__ >= 8 : __GNUC__ >= 9
#define HAVE_WIDE_REGISTERS 1
/* 64 bytes to a register and four registers together: what is far ahead is added to what comes 256 bytes
 * later, multiplied by what x^2048 leaves (of each 16 bytes the first eight are 64 further away), until 16
 * bytes are left, which have the same remainder as all. From about twice that on it is the quickest. */
enum { WIDE_BYTES = 256 };
static uint64_t wide_far[3][2]; /* the factors for 16, 64 and 256 bytes; of the first eight bytes, and of the others */

#define WIDE __attribute__((target("avx512f,vpclmulqdq,pclmul,sse4.2")))

WIDE static inline __m512i wide_factors(int k)
{
    return _mm512_broadcast_i32x4(_mm_set_epi64x((long long)wide_far[k][1], (long long)wide_far[k][0]));
}

WIDE static inline __m512i wide_fold(__m512i far, __m512i factors, __m512i near)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(far, factors, 0x00),
                                     _mm512_clmulepi64_epi128(far, factors, 0x11), near, 0x96);
}

WIDE static uint32_t crc_wide(uint32_t crc, const uint8_t *data, size_t size)
{
    if (size < 2 * WIDE_BYTES)
        return crc_sse42(crc, data, size);
    const __m512i by_256 = wide_factors(2), by_64 = wide_factors(1);
    __m512i at[4];
    for (int i = 0; i < 4; i++)
        at[i] = _mm512_loadu_si512(data + 64 * i);
    at[0] = _mm512_xor_si512(at[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (data += WIDE_BYTES, size -= WIDE_BYTES; size >= WIDE_BYTES; data += WIDE_BYTES, size -= WIDE_BYTES)
        for (int i = 0; i < 4; i++)
            at[i] = wide_fold(at[i], by_256, _mm512_loadu_si512(data + 64 * i));
    for (int i = 0; i < 3; i++)
        at[i + 1] = wide_fold(at[i], by_64, at[i + 1]);
    const __m128i by_16 = _mm_set_epi64x((long long)wide_far[0][1], (long long)wide_far[0][0]);
    __m128i left = _mm512_extracti32x4_epi32(at[3], 0);
    const __m128i next[3] = {_mm512_extracti32x4_epi32(at[3], 1), _mm512_extracti32x4_epi32(at[3], 2),
                             _mm512_extracti32x4_epi32(at[3], 3)};
    for (int i = 0; i < 3; i++)
        left = _mm_xor_si128(next[i], _mm_xor_si128(_mm_clmulepi64_si128(left, by_16, 0x00),
                                                    _mm_clmulepi64_si128(left, by_16, 0x11)));
    const uint64_t first = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(left));
    return crc_sse42((uint32_t)_mm_crc32_u64(first, (uint64_t)_mm_extract_epi64(left, 1)), data, size);
}

/* Copies, and advances the register by the bytes that it has stored: as crc_wide, in one pass. */
WIDE static uint32_t crc_wide_copy(uint32_t crc, uint8_t *dest, const uint8_t *data, size_t size)
{
    if (size < 2 * WIDE_BYTES) {
        memcpy(dest, data, size);
        return crc_sse42(crc, dest, size);
    }
    const __m512i by_256 = wide_factors(2);
    __m512i at[4], next;
    uint8_t last[WIDE_BYTES];
    for (int i = 0; i < 4; i++) {
        at[i] = _mm512_loadu_si512(data + 64 * i);
        _mm512_storeu_si512(dest + 64 * i, at[i]);
    }
    at[0] = _mm512_xor_si512(at[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    for (data += WIDE_BYTES, dest += WIDE_BYTES, size -= WIDE_BYTES; size >= WIDE_BYTES;
         data += WIDE_BYTES, dest += WIDE_BYTES, size -= WIDE_BYTES)
        for (int i = 0; i < 4; i++) {
            next = _mm512_loadu_si512(data + 64 * i);
            _mm512_storeu_si512(dest + 64 * i, next);
            at[i] = wide_fold(at[i], by_256, next);
        }
    /* What has been folded stands for all bytes so far: it is summed as if it were the message. */
    for (int i = 0; i < 4; i++)
        _mm512_storeu_si512(last + 64 * i, at[i]);
    memcpy(dest, data, size);
    return crc_sse42(crc_sse42(0, last, WIDE_BYTES), dest, size);
}
#endif

/* Which way the processor and the system allow; __builtin_cpu_supports says no wherever zig's runtime is linked. */
static void crc_ways(int *sse42, int *wide)
{
    unsigned a, b, c = 0, d, b7 = 0, c7 = 0, states = 0;
    __get_cpuid(1, &a, &b, &c, &d);
    *sse42 = c & bit_SSE4_2 && c & bit_PCLMUL;
    if (c & bit_OSXSAVE)
        __asm__("xgetbv" : "=a"(states), "=d"(d) : "c"(0));
    __get_cpuid_count(7, 0, &a, &b7, &c7, &d);
    *wide = *sse42 && (states & 0xE6) == 0xE6 && b7 & bit_AVX512F && c7 & 1 << 10 /* VPCLMULQDQ */;
}

static uint32_t power_of_x(size_t exponent) /* x^exponent mod P; bit 31 is the coefficient of x^0 */
{
    uint32_t value = 0x80000000u;
    while (exponent--)
        value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
    return value;
}
#elif defined(__aarch64__)
static uint32_t crc_armv8(uint32_t crc, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; size; data++, size--)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*data));
    return crc;
}
#endif

static void crc_choose(void)
{
    for (unsigned b = 0; b < 256; b++) {
        uint32_t value = b;
        for (int bit = 0; bit < 8; bit++)
            value = value >> 1 ^ (value & 1 ? POLYNOMIAL : 0);
        table[0][b] = value;
    }
    for (unsigned b = 0; b < 256; b++)
        for (int k = 1; k < 8; k++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 255];
#if defined(__x86_64__)
    for (int k = 0; k < LANE_SIZES; k++) {
        past_one[k] = power_of_x(8 * lane_bytes[k] - 33);
        past_two[k] = power_of_x(16 * lane_bytes[k] - 33);
    }
    int sse42, wide;
    crc_ways(&sse42, &wide);
    if (sse42)
        crc_lanes = crc_update = crc_sse42;
#ifdef HAVE_WIDE_REGISTERS
    for (int k = 0; k < 3; k++) {
        wide_far[k][0] = power_of_x(8 * (16u << 2 * k) + 31);
        wide_far[k][1] = power_of_x(8 * (16u << 2 * k) - 33);
    }
    if (wide)
        crc_update = crc_wide, crc_copy = crc_wide_copy;
#endif
#elif defined(__aarch64__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (getauxval(AT_HWCAP) & HWCAP_CRC32)
        crc_lanes = crc_update = crc_armv8;
#endif
}

#endif
