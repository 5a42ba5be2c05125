// Writes the numbers of true elements. A block reads `SHARE` bytes of the mask; the counts of the blocks before it give
// the place where it begins to write.

#define THREADS 256
#define BYTES 16
#define SHARE (THREADS * BYTES)

struct Params {
    u64 mask;
    u64 count;
    // For each block, the number of elements that it finds; then, the number that the blocks before it find; at the
    // end, the total.
    u64 found;
    u64 blocks;
    u64 out;
};

// Returns, as bits, which of this thread's bytes are true.
DEVICE u32 bits(const Params& p, u64 first) {
    const u8* mask = (const u8*)p.mask + first;
    u32 bits = 0;
    if (first + BYTES <= p.count && (u64)mask % BYTES == 0) {
        const Pack<u8, BYTES> bytes = *(const Pack<u8, BYTES>*)mask;
        for (int i = 0; i < BYTES; i++) bits |= (u32)(bytes.of[i] != 0) << i;
    } else {
        for (int i = 0; i < BYTES; i++)
            if (first + i < p.count) bits |= (u32)(mask[i] != 0) << i;
    }
    return bits;
}

#if defined(NONZERO_SCAN)
extern "C" __global__ void __launch_bounds__(1024) kernel(const __grid_constant__ Params p) {
    u64* found = (u64*)p.found;
    u64 sum = 0;
    for (u64 first = 0; first < p.blocks; first += 1024) {
        const u64 at = first + threadIdx.x;
        u64 all;
        const u64 start = before<1024>(at < p.blocks ? found[at] : 0, &all);
        if (at < p.blocks) found[at] = sum + start;
        sum += all;
    }
    if (threadIdx.x == 0) found[p.blocks] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u64 first = (u64)blockIdx.x * SHARE + threadIdx.x * BYTES;
    u32 left = bits(p, first);
    u64 all;
    const u64 start = before<THREADS>(__popc(left), &all);
#if defined(NONZERO_COUNT)
    if (threadIdx.x == 0) ((u64*)p.found)[blockIdx.x] = all;
#else
    i64* out = (i64*)p.out + ((const u64*)p.found)[blockIdx.x] + start;
    for (; left != 0; left &= left - 1) *out++ = first + __ffs(left) - 1;
#endif
}
#endif
