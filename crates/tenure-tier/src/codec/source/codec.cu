// Encodes and decodes as the Rust code of this folder does, byte for byte. The host defines `MEASURE`, `OFFSETS`,
// `WRITE` or `READ`, which selects the kernel; `CODEC`, the number of the codec; and `WIDTH`, the bytes of an element.
//
// A thread block has a block of elements. A thread has every 256th, so that a warp has neighbours and its ballot is a
// word of the block's bitmap.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define NONE 0
#define ZEROS 1
#define PLANES 2
#define FP16 3
#define CSR_FP16 4

#define BLOCK 1024
#define WARP 32
#define ALL 0xffffffffu
#define UNIT 16
#define HEADER 16
#define MAGIC 0x31434e54u
#define DEVICE static __device__ __forceinline__

// The second word of the status that the host reads.
#define ENCODED 0
#define RAW 1
#define OVERFLOW 2
#define CHANGED 3

struct Params {
    u64 raw, raw_bytes;
    u64 stream, stream_bytes;
    // Two words: the bytes of the stream, and one of the results above.
    u64 status;
    u64 blocks;
    u64 codec, width;
};

DEVICE u32 round_up(u32 bytes) { return (bytes + UNIT - 1) / UNIT * UNIT; }
DEVICE u64 table_bytes(u64 blocks) { return (4 * blocks + UNIT - 1) / UNIT * UNIT; }

#if OFFSETS
#define THREADS 1024
// The blocks that a thread handles at once.
#define EACH 16

// Turns lengths into ends, in one thread block.
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    __shared__ u32 sums[WARP];
    u32* const table = (u32*)(p.stream + HEADER);
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 end = 0;
    for (u64 first = 0; first < p.blocks; first += THREADS * EACH) {
        u32 units[EACH], sum = 0;
        for (int i = 0; i < EACH; i++) {
            const u64 block = first + threadIdx.x * EACH + i;
            units[i] = block < p.blocks ? table[block] : 0;
            sum += units[i];
        }
        u32 before = sum;
        for (u32 by = 1; by < WARP; by *= 2) {
            const u32 left = __shfl_up_sync(ALL, before, by);
            if (lane >= by) before += left;
        }
        if (lane == WARP - 1) sums[warp] = before;
        __syncthreads();
        before += end - sum;
        for (u32 w = 0; w < THREADS / WARP; w++) {
            if (w < warp) before += sums[w];
            end += sums[w];
        }
        __syncthreads();
        for (int i = 0; i < EACH; i++) {
            const u64 block = first + threadIdx.x * EACH + i;
            before += units[i];
            if (block < p.blocks) table[block] = before;
        }
    }
    const u64 bytes = HEADER + table_bytes(p.blocks) + (u64)UNIT * end, raw = HEADER + p.raw_bytes;
    const bool is_raw = bytes >= raw;
    const u64 total = is_raw ? raw : bytes, state = total > p.stream_bytes ? OVERFLOW : is_raw ? RAW : ENCODED;
    if (state == ENCODED && threadIdx.x < table_bytes(p.blocks) / 4 - p.blocks) table[p.blocks + threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        u64* const status = (u64*)p.status;
        status[0] = total;
        status[1] = state;
        if (state != OVERFLOW) {
            u64* const header = (u64*)p.stream;
            header[0] = MAGIC | (state == RAW ? 0 : p.codec) << 32 | p.width << 40;
            header[1] = p.raw_bytes;
        }
    }
}
#else
#define THREADS 256
// The elements of a thread.
#define EACH 4
#define WORDS (BLOCK / WARP)
#define PLANE (BLOCK / 8)
#define BLOCK_BYTES (BLOCK * WIDTH)

#if WIDTH == 1
typedef u8 T;
#elif WIDTH == 2
typedef u16 T;
#elif WIDTH == 4
typedef u32 T;
#else
typedef u64 T;
#endif

// A bitmap, and the number of bits set before each of its words and in all.
__shared__ u32 words[WORDS];
__shared__ u32 before[WORDS + 1];

DEVICE u32 lane() { return threadIdx.x % WARP; }
DEVICE u32 element(int i) { return i * THREADS + threadIdx.x; }
DEVICE u32 word(int i) { return element(i) / WARP; }

// Loads a thread's elements of the block, from a tensor that begins at `from`. The last block is padded with zeros.
DEVICE void load(const Params& p, u64 from, T x[EACH]) {
    for (int i = 0; i < EACH; i++) {
        const u64 at = (u64)blockIdx.x * BLOCK_BYTES + element(i) * WIDTH;
        x[i] = 0;
        if (at + WIDTH <= p.raw_bytes) {
            x[i] = *(const T*)(from + at);
        } else {
            for (int byte = 0; byte < WIDTH; byte++)
                if (at + byte < p.raw_bytes) x[i] |= (T)((T)((const u8*)from)[at + byte] << 8 * byte);
        }
    }
}

DEVICE void store(const Params& p, u64 to, const T x[EACH]) {
    for (int i = 0; i < EACH; i++) {
        const u64 at = (u64)blockIdx.x * BLOCK_BYTES + element(i) * WIDTH;
        if (at + WIDTH <= p.raw_bytes) {
            *(T*)(to + at) = x[i];
        } else {
            for (int byte = 0; byte < WIDTH; byte++)
                if (at + byte < p.raw_bytes) ((u8*)to)[at + byte] = (u8)(x[i] >> 8 * byte);
        }
    }
}

// Counts the bits in `words`.
DEVICE void count_words() {
    __syncthreads();
    if (threadIdx.x < WORDS) {
        const u32 own = __popc(words[threadIdx.x]);
        u32 sum = own;
        for (u32 by = 1; by < WARP; by *= 2) {
            const u32 left = __shfl_up_sync(ALL, sum, by);
            if (lane() >= by) sum += left;
        }
        before[threadIdx.x] = sum - own;
        if (threadIdx.x == WORDS - 1) before[WORDS] = sum;
    }
    __syncthreads();
}

DEVICE void mark(const bool is_so[EACH]) {
    for (int i = 0; i < EACH; i++) {
        const u32 bits = __ballot_sync(ALL, is_so[i]);
        if (lane() == 0) words[word(i)] = bits;
    }
    count_words();
}

DEVICE bool is_marked(int i) { return words[word(i)] >> lane() & 1; }

// Returns how many marked elements come before it.
DEVICE u32 rank(int i) { return before[word(i)] + __popc(words[word(i)] & ((1u << lane()) - 1)); }

DEVICE bool any(const T x[EACH]) {
    bool is_any = false;
    for (int i = 0; i < EACH; i++) is_any |= x[i] != 0;
    return __syncthreads_or(is_any);
}

#if CODEC == FP16 || CODEC == CSR_FP16
// Rounds in integers, since the device's own conversion loses a NaN's payload.
DEVICE u16 to_half(u32 x) {
    const u32 sign = x >> 16 & 0x8000, bits = x & 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00 | (bits >> 13 & 0x3ff);
    if (bits >= 0x47800000) return sign | 0x7c00;
    if (bits >= 0x38800000) {
        const u32 rebased = bits - 0x38000000;
        return sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13;
    }
    if (bits < 0x33000000) return sign;
    const u32 mantissa = (bits & 0x7fffff) | 0x800000, shift = 126 - (bits >> 23);
    const u32 half = mantissa >> shift, rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1);
    return sign | (half + (rest > tie || (rest == tie && (half & 1))));
}

DEVICE u32 from_half(u16 x) {
    const u32 sign = (u32)(x & 0x8000) << 16, exponent = x >> 10 & 31, mantissa = x & 0x3ff;
    if (exponent == 31) return sign | (mantissa ? 0x7fc00000 : 0x7f800000) | mantissa << 13;
    if (exponent > 0) return sign | (exponent + 112) << 23 | mantissa << 13;
    if (mantissa == 0) return sign;
    const u32 highest = 31 - __clz(mantissa);
    return sign | (highest + 103) << 23 | (mantissa << (23 - highest) & 0x7fffff);
}
#endif

#if CODEC == ZEROS || CODEC == CSR_FP16
#if CODEC == ZEROS
typedef T Stored;
DEVICE Stored stored(T x) { return x; }
DEVICE T restored(Stored x) { return x; }
#else
typedef u16 Stored;
DEVICE Stored stored(T x) { return to_half(x); }
DEVICE T restored(Stored x) { return from_half(x); }
#endif

DEVICE u32 length(u32 count) { return PLANE + (u32)sizeof(Stored) * count; }

DEVICE u32 measure(const T x[EACH]) {
    bool is_some[EACH];
    for (int i = 0; i < EACH; i++) is_some[i] = x[i] != 0;
    mark(is_some);
    return length(before[WORDS]);
}

DEVICE u32 encode(const T x[EACH], u8* to) {
    const u32 bytes = measure(x);
    if (threadIdx.x < WORDS) ((u32*)to)[threadIdx.x] = words[threadIdx.x];
    for (int i = 0; i < EACH; i++)
        if (is_marked(i)) ((Stored*)(to + PLANE))[rank(i)] = stored(x[i]);
    return bytes;
}

DEVICE bool decode(const u8* from, u32 bytes, T x[EACH]) {
    if (bytes < PLANE) return false;
    if (threadIdx.x < WORDS) words[threadIdx.x] = ((const u32*)from)[threadIdx.x];
    count_words();
    if (round_up(length(before[WORDS])) != bytes) return false;
    for (int i = 0; i < EACH; i++) x[i] = is_marked(i) ? restored(((const Stored*)(from + PLANE))[rank(i)]) : 0;
    return true;
}
#elif CODEC == FP16
DEVICE u32 measure(const T x[EACH]) { return 2 * BLOCK; }

DEVICE u32 encode(const T x[EACH], u8* to) {
    for (int i = 0; i < EACH; i++) ((u16*)to)[element(i)] = to_half(x[i]);
    return 2 * BLOCK;
}

DEVICE bool decode(const u8* from, u32 bytes, T x[EACH]) {
    if (bytes != 2 * BLOCK) return false;
    for (int i = 0; i < EACH; i++) x[i] = from_half(((const u16*)from)[element(i)]);
    return true;
}
#elif CODEC == PLANES
#define HEAD 4
#define REST (BLOCK * (WIDTH - 1))
#define MOST_BITS 7
#define SHIFT (8 * WIDTH - 16)

struct Code {
    u32 floor, bits, exceptions;
};

DEVICE u32 exponent(T x) { return (u32)(x >> (SHIFT + 7)) & 0xff; }
DEVICE u32 highest(u32 bits) { return (1u << bits) - 1; }
DEVICE u32 floor_of(u32 max, u32 bits) { return max > highest(bits) ? max - highest(bits) : 0; }
DEVICE u32 length(Code code) { return HEAD + REST + PLANE * code.bits + code.exceptions; }

// Chooses the shortest code; among equals, the one with the fewest bits.
DEVICE Code choose(const T x[EACH]) {
    __shared__ u32 most[THREADS / WARP], above[MOST_BITS + 1];
    u32 max = 0;
    for (int i = 0; i < EACH; i++) max = exponent(x[i]) > max ? exponent(x[i]) : max;
    for (u32 by = WARP / 2; by > 0; by /= 2) {
        const u32 other = __shfl_xor_sync(ALL, max, by);
        max = other > max ? other : max;
    }
    if (lane() == 0) most[threadIdx.x / WARP] = max;
    if (threadIdx.x <= MOST_BITS) above[threadIdx.x] = 0;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) max = most[w] > max ? most[w] : max;
    for (u32 bits = 1; bits <= MOST_BITS; bits++) {
        u32 count = 0;
        for (int i = 0; i < EACH; i++) count += __popc(__ballot_sync(ALL, exponent(x[i]) > floor_of(max, bits)));
        if (lane() == 0) atomicAdd(&above[bits], count);
    }
    __syncthreads();
    Code best = {floor_of(max, 1), 1, BLOCK - above[1]};
    for (u32 bits = 2; bits <= MOST_BITS; bits++) {
        const Code next = {floor_of(max, bits), bits, BLOCK - above[bits]};
        if (length(next) < length(best)) best = next;
    }
    return best;
}

DEVICE u32 measure(const T x[EACH]) { return length(choose(x)); }

DEVICE u32 encode(const T x[EACH], u8* to) {
    const Code code = choose(x);
    if (threadIdx.x == 0) *(u32*)to = code.floor | code.bits << 8 | code.exceptions << 16;
    bool is_exception[EACH];
    u8* const planes = to + HEAD + REST;
    u8* const found = planes + PLANE * code.bits;
    for (int i = 0; i < EACH; i++) {
        const u32 high = (u32)(x[i] >> SHIFT), e = exponent(x[i]);
        to[HEAD + element(i)] = (high & 0x7f) | (high >> 8 & 0x80);
        if (WIDTH == 4) ((u16*)(to + HEAD + BLOCK))[element(i)] = (u16)x[i];
        is_exception[i] = e <= code.floor;
        const u32 above = is_exception[i] ? 0 : e - code.floor;
        for (u32 bit = 0; bit < code.bits; bit++) {
            const u32 bits = __ballot_sync(ALL, above >> bit & 1);
            if (lane() == 0) ((u32*)(planes + PLANE * bit))[word(i)] = bits;
        }
    }
    mark(is_exception);
    for (int i = 0; i < EACH; i++)
        if (is_marked(i)) found[rank(i)] = exponent(x[i]);
    return length(code);
}

DEVICE bool decode(const u8* from, u32 bytes, T x[EACH]) {
    if (bytes < HEAD + REST) return false;
    const u32 head = *(const u32*)from;
    const Code code = {head & 0xff, head >> 8 & 0xff, head >> 16};
    if (code.bits < 1 || code.bits > MOST_BITS || code.floor + highest(code.bits) > 255) return false;
    if (round_up(length(code)) != bytes) return false;
    const u8* const planes = from + HEAD + REST;
    const u8* const found = planes + PLANE * code.bits;
    u32 codes[EACH];
    bool is_exception[EACH];
    for (int i = 0; i < EACH; i++) {
        codes[i] = 0;
        for (u32 bit = 0; bit < code.bits; bit++)
            codes[i] |= (((const u32*)(planes + PLANE * bit))[word(i)] >> lane() & 1) << bit;
        is_exception[i] = codes[i] == 0;
    }
    mark(is_exception);
    if (before[WORDS] != code.exceptions) return false;
    for (int i = 0; i < EACH; i++) {
        const u32 e = is_exception[i] ? found[rank(i)] : codes[i] + code.floor, sign = from[HEAD + element(i)];
        x[i] = (T)((T)((sign & 0x80) << 8 | e << 7 | (sign & 0x7f)) << SHIFT);
        if (WIDTH == 4) x[i] |= ((const u16*)(from + HEAD + BLOCK))[element(i)];
    }
    return true;
}
#else
DEVICE u32 measure(const T x[EACH]) { return BLOCK_BYTES; }
DEVICE u32 encode(const T x[EACH], u8* to) { return BLOCK_BYTES; }
DEVICE bool decode(const u8* from, u32 bytes, T x[EACH]) { return false; }
#endif

DEVICE void fail(const Params& p) {
    if (threadIdx.x == 0) ((u64*)p.status)[1] = CHANGED;
}

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u64 block = blockIdx.x, payload = p.stream + HEADER + table_bytes(p.blocks);
    u32* const ends = (u32*)(p.stream + HEADER);
    T x[EACH];
#if MEASURE
    load(p, p.raw, x);
    u32 bytes = 0;
    if (CODEC == NONE || any(x)) bytes = measure(x);
    if (threadIdx.x == 0) ends[block] = (bytes < BLOCK_BYTES ? round_up(bytes) : BLOCK_BYTES) / UNIT;
#elif WRITE
    const u64 state = ((const u64*)p.status)[1];
    if (state == OVERFLOW) return;
    load(p, p.raw, x);
    if (state == RAW) return store(p, p.stream + HEADER, x);
    const u32 start = block > 0 ? ends[block - 1] : 0, bytes = UNIT * (ends[block] - start);
    u8* const to = (u8*)(payload + (u64)UNIT * start);
    if (bytes == BLOCK_BYTES) {
        for (int i = 0; i < EACH; i++) ((T*)to)[element(i)] = x[i];
    } else if (bytes > 0) {
        const u32 rest = encode(x, to) + threadIdx.x;
        if (rest < bytes) to[rest] = 0;
    }
#else
    const u32* const header = (const u32*)p.stream;
    const u32 codec = header[1] & 0xff;
    if (header[0] != MAGIC || header[1] >> 16 != 0 || ((const u64*)p.stream)[1] != p.raw_bytes) return fail(p);
    if (codec == NONE) {
        if (HEADER + p.raw_bytes > p.stream_bytes) return fail(p);
        load(p, p.stream + HEADER, x);
        return store(p, p.raw, x);
    }
    if (codec != CODEC || header[1] >> 8 != WIDTH || HEADER + table_bytes(p.blocks) > p.stream_bytes) return fail(p);
    const u64 start = block > 0 ? ends[block - 1] : 0, end = ends[block];
    if (start > end || end - start > BLOCK_BYTES / UNIT || payload - p.stream + UNIT * end > p.stream_bytes) return fail(p);
    const u32 bytes = UNIT * (u32)(end - start);
    const u8* const from = (const u8*)(payload + UNIT * start);
    if (bytes == 0 || bytes == BLOCK_BYTES) {
        for (int i = 0; i < EACH; i++) x[i] = bytes == 0 ? 0 : ((const T*)from)[element(i)];
    } else if (!decode(from, bytes, x)) {
        return fail(p);
    }
    store(p, p.raw, x);
#endif
}
#endif
