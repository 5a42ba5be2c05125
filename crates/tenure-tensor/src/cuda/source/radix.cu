// One pass of a stable radix sort of rows, by a digit of 8 bits. A row is cut into tiles, one for each block. The
// elements of each digit in each tile are counted, the counts are added up over the tiles, and each element is written
// after all that come before it. The host has defined `Element`, the type to sort, from which `Key` is made; `Number`,
// for the numbers of a row's elements; `ITEMS`, the number of elements of a thread; `FIRST` or `LAST` for those passes;
// and the name of the step.

#define THREADS 256
#define WARPS (THREADS / 32)
#define DIGITS 256
#define TILE (THREADS * ITEMS)

struct Params {
    // The elements in the first pass, else the keys, with the numbers that they had at first.
    u64 keys;
    u64 numbers;
    // In the last pass only numbers are written, as `i64`, unless keys are wanted.
    u64 sorted_keys;
    u64 sorted_numbers;
    // The counts of each row and digit in each tile; later, the counts before each tile.
    u64 counts;
    // The totals of each row and digit.
    u64 totals;
    u64 length;
    u64 tiles;
    u64 shift;
    // Positions from here on count as none.
    u64 limit;
};

DEVICE Key key_at(const Params& p, u64 at) {
#if !FIRST
    return ((const Key*)p.keys)[at];
#elif defined(POSITIONS)
    const u64 position = ((const u64*)p.keys)[at];
    return position < p.limit ? position : p.limit;
#else
    return key_of(((const Element*)p.keys)[at]);
#endif
}

DEVICE u32 digit_of(const Params& p, Key key) { return (u32)(key >> p.shift) % DIGITS; }

#if defined(SORT_COUNT)
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    __shared__ u32 counts[DIGITS];
    const u64 row = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < ITEMS; i++) {
        const u64 at = tile * TILE + i * THREADS + threadIdx.x;
        if (at < p.length) atomicAdd(&counts[digit_of(p, key_at(p, row * p.length + at))], 1u);
    }
    __syncthreads();
    ((Number*)p.counts)[(row * DIGITS + threadIdx.x) * p.tiles + tile] = counts[threadIdx.x];
}

#elif defined(SORT_ADD_UP)
// A block adds up each row and digit.
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    Number* counts = (Number*)p.counts + blockIdx.x * p.tiles;
    u64 sum = 0;
    for (u64 first = 0; first < p.tiles; first += THREADS) {
        const u64 tile = first + threadIdx.x;
        u64 all;
        const u64 start = before<THREADS>(tile < p.tiles ? counts[tile] : 0, &all);
        if (tile < p.tiles) counts[tile] = sum + start;
        sum += all;
    }
    if (threadIdx.x == 0) ((Number*)p.totals)[blockIdx.x] = sum;
}

#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    __shared__ u32 counts[WARPS][DIGITS];
    __shared__ Number starts[DIGITS];
    const u64 row = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 0; i < WARPS; i++) counts[i][threadIdx.x] = 0;
    __syncthreads();
    // A warp's elements are contiguous.
    const u64 first = tile * TILE + warp * (32 * ITEMS) + lane;
    Key keys[ITEMS];
    u32 ranks[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u64 at = first + i * 32;
        keys[i] = at < p.length ? key_at(p, row * p.length + at) : 0;
    }
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const bool is_one = first + i * 32 < p.length;
        const u32 digit = is_one ? digit_of(p, keys[i]) : DIGITS;
        const u32 same = __match_any_sync(~0u, digit), earlier = __popc(same & ((1u << lane) - 1));
        ranks[i] = is_one ? counts[warp][digit] + earlier : 0;
        __syncwarp();
        if (is_one && earlier == 0) counts[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    // Each thread has a digit.
    u32 sum = 0;
    for (int i = 0; i < WARPS; i++) {
        const u32 count = counts[i][threadIdx.x];
        counts[i][threadIdx.x] = sum;
        sum += count;
    }
    const u64 digit = row * DIGITS + threadIdx.x;
    const Number* all_counts = (const Number*)p.counts;
    u64 all;
    const u64 start = before<THREADS>(p.tiles == 1 ? all_counts[digit] : ((const Number*)p.totals)[digit], &all);
    starts[threadIdx.x] = start + (p.tiles == 1 ? 0 : all_counts[digit * p.tiles + tile]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; i++) {
        const u64 at = first + i * 32;
        if (at >= p.length) continue;
        const u32 digit = digit_of(p, keys[i]);
        const u64 to = row * p.length + starts[digit] + counts[warp][digit] + ranks[i];
        const Number number = FIRST ? (Number)at : ((const Number*)p.numbers)[row * p.length + at];
        if (LAST) {
            ((i64*)p.sorted_numbers)[to] = number;
        } else {
            ((Key*)p.sorted_keys)[to] = keys[i];
            ((Number*)p.sorted_numbers)[to] = number;
        }
    }
}
#endif
