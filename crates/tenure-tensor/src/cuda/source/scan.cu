// Cumulative sums and products. The host has defined `T`, the type in memory; `C`, the type to compute in; `PRODUCT`, 0
// or 1; `V`, the number of neighbours of a thread, and `ALIGNED`, 1 if they are read at once; `COLUMNS`, 1 if each
// thread walks a row by itself, 0 if blocks do; and `TOTALS`, 1 to write only the total of each part of a row, 0 to
// continue from those totals.

#define THREADS 256
#define WARP 32
#define NONE ((C)PRODUCT)

struct Params {
    u64 out, input;
    // The totals of parts, those of the first part of all rows first; 0 if rows are not divided.
    u64 totals;
    // The number of elements in a row, the number of rows, and the distance of a row's elements.
    u64 n, rows, step;
    // The number of elements in a part.
    u64 length;
};

DEVICE C merge(C a, C b) { return PRODUCT ? a * b : a + b; }

#if COLUMNS
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u64 number = (u64)blockIdx.x * THREADS + threadIdx.x, row = number % p.rows, part = number / p.rows;
    const u64 begin = part * p.length, end = begin + p.length < p.n ? begin + p.length : p.n;
    if (begin >= p.n) return;
    const u64 first = row / p.step * p.step * p.n + row % p.step;
    const T* const x = (const T*)p.input + first;
    T* const out = (T*)p.out + first;
    C* const totals = (C*)p.totals;
    C so_far = NONE;
#if TOTALS
#pragma unroll 4
    for (u64 at = begin; at < end; at++) so_far = merge(so_far, cast<C>(x[at * p.step]));
    totals[part * p.rows + row] = so_far;
#else
    if (totals != 0)
        for (u64 before = 0; before < part; before++) so_far = merge(so_far, totals[before * p.rows + row]);
#pragma unroll 4
    for (u64 at = begin; at < end; at++) {
        so_far = merge(so_far, cast<C>(x[at * p.step]));
        out[at * p.step] = cast<T>(so_far);
    }
#endif
}
#else
// Returns the result over the threads before this one, and in `total` the result over the block.
DEVICE C before_in_block(C x, C& total) {
    __shared__ C slots[THREADS / WARP];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    for (u32 by = 1; by < WARP; by *= 2) {
        const C left = __shfl_up_sync(0xffffffffu, x, by);
        if (lane >= by) x = merge(left, x);
    }
    if (lane == WARP - 1) slots[warp] = x;
    const C left = __shfl_up_sync(0xffffffffu, x, 1);
    __syncthreads();
    C before = NONE;
    total = NONE;
    for (u32 w = 0; w < THREADS / WARP; w++) {
        if (w == warp) before = total;
        total = merge(total, slots[w]);
    }
    __syncthreads();
    return lane > 0 ? merge(before, left) : before;
}

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u64 row = blockIdx.x, part = blockIdx.y;
    const u64 begin = part * p.length, end = begin + p.length < p.n ? begin + p.length : p.n;
    const T* const x = (const T*)p.input + row * p.n;
    T* const out = (T*)p.out + row * p.n;
    C* const totals = (C*)p.totals;
    C so_far = NONE;
#if !TOTALS
    if (totals != 0) {
        C some = NONE;
        for (u64 before = threadIdx.x; before < part; before += THREADS)
            some = merge(some, totals[before * p.rows + row]);
        before_in_block(some, so_far);
    }
#endif
    for (u64 first = begin; first < end; first += THREADS * V) {
        const u64 at = first + threadIdx.x * V;
        C values[V];
        if (ALIGNED && at + V <= end) {
            const Pack<T, V> pack = *(const Pack<T, V>*)(x + at);
            for (int i = 0; i < V; i++) values[i] = cast<C>(pack.of[i]);
        } else {
            for (int i = 0; i < V; i++) values[i] = at + i < end ? cast<C>(x[at + i]) : NONE;
        }
        for (int i = 1; i < V; i++) values[i] = merge(values[i - 1], values[i]);
        C total;
        const C before = merge(so_far, before_in_block(values[V - 1], total));
        so_far = merge(so_far, total);
#if !TOTALS
        Pack<T, V> pack;
        for (int i = 0; i < V; i++) pack.of[i] = cast<T>(merge(before, values[i]));
        if (ALIGNED && at + V <= end) {
            *(Pack<T, V>*)(out + at) = pack;
        } else {
            for (int i = 0; i < V; i++)
                if (at + i < end) out[at + i] = pack.of[i];
        }
#endif
    }
#if TOTALS
    if (threadIdx.x == 0) totals[part * p.rows + row] = so_far;
#endif
}
#endif
