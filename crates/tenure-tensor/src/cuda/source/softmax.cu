// Softmax, and its gradient. The host has put lines.cu and exponentials.cu before this, and has defined `BACKWARD` and
// `LOGARITHMIC`, 0 or 1; and `COLUMNS`, if the elements of a row are not contiguous.

DEVICE C value_of(C x, const Exponentials& all, C by) {
    return LOGARITHMIC ? x - all.largest - by : exp(x - all.largest) * by;
}
DEVICE C scale_of(const Exponentials& all) { return LOGARITHMIC ? log(all.sum) : (C)1 / all.sum; }

// `along` is the summand of a row's sum, and `gradient` the gradient of the input, from the output's gradient and the
// output.
DEVICE C along(C grad, C y) { return LOGARITHMIC ? grad : grad * y; }
DEVICE C gradient(C grad, C y, C sum) { return LOGARITHMIC ? grad - exp(y) * sum : (grad - sum) * y; }

struct Params {
    u64 out;
    // The input; or with `BACKWARD` the output's gradient and the output.
    u64 arrays[ARRAYS];
    // The number of elements in a row, and of rows in all.
    u64 n, rows;
    u64 lanes;
    // The distance of a row's elements.
    u64 step;
};

#ifdef COLUMNS
// For interleaved rows, `lanes` of them to a block: merges the values of the threads that share a row.
template <typename S, typename Merge> DEVICE S merged_below(S x, u32 lanes, Merge merge) {
    __shared__ S slots[THREADS];
    const u32 t = threadIdx.x;
    slots[t] = x;
    for (u32 by = THREADS / 2; by >= lanes; by /= 2) {
        __syncthreads();
        if (t < by) slots[t] = merge(slots[t], slots[t + by]);
    }
    __syncthreads();
    return slots[t % lanes];
}

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u32 lanes = (u32)p.lanes, below = THREADS / lanes;
    const u64 row = (u64)blockIdx.x * lanes + threadIdx.x % lanes;
    const u64 n = row < p.rows ? p.n : 0, first = row / p.step * p.step * p.n + row % p.step;
    const u64 begin = threadIdx.x / lanes;
    T* const out = (T*)p.out + first;
    const T* const x = (const T*)p.arrays[0] + first;
#if BACKWARD
    const T* const y = (const T*)p.arrays[1] + first;
    C sum = (C)0;
#pragma unroll 8
    for (u64 at = begin; at < n; at += below) sum += along(cast<C>(x[at * p.step]), cast<C>(y[at * p.step]));
    sum = merged_below(sum, lanes, [](C a, C b) { return a + b; });
#pragma unroll 4
    for (u64 at = begin; at < n; at += below)
        out[at * p.step] = cast<T>(gradient(cast<C>(x[at * p.step]), cast<C>(y[at * p.step]), sum));
#else
    Exponentials all = NOTHING;
    for (u64 at = begin; at < n; at += U * below) {
        C part[U];
#pragma unroll
        for (u32 u = 0; u < U; u++)
            part[u] = at + u * below < n ? cast<C>(x[(at + u * below) * p.step]) : -INFINITE(C);
        all = merge(all, exponentials(part));
    }
    all = merged_below(all, lanes, merge);
    const C by = scale_of(all);
#pragma unroll 4
    for (u64 at = begin; at < n; at += below) out[at * p.step] = cast<T>(value_of(cast<C>(x[at * p.step]), all, by));
#endif
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u32 lanes = (u32)p.lanes;
    const u64 row = row_of(lanes), first = row * p.n;
    Line line(p.arrays, row, row < p.rows, p.n, lanes);
#if BACKWARD
    C sum = (C)0;
    line.for_each([&](auto& x, u64, int) {
        for (int i = 0; i < sizeof(x[0]) / sizeof(C); i++) sum += along(x[0][i], x[ARRAYS - 1][i]);
    });
    sum = sum_of(sum, lanes);
    line.for_each([&](auto& x, u64 at, int) {
        for (int i = 0; i < sizeof(x[0]) / sizeof(C); i++) x[0][i] = gradient(x[0][i], x[ARRAYS - 1][i], sum);
        store(p.out, first + at, x[0]);
    });
#else
    Exponentials all = NOTHING;
#if ITEMS > 0
    line.for_each([&](auto& x, u64, int) {
        for (C value : x[0]) all.largest = value > all.largest ? value : all.largest;
    });
    all.largest = merged(all.largest, lanes, -INFINITE(C), [](C a, C b) { return a > b ? a : b; });
    line.for_each([&](auto& x, u64, int) {
        for (C& value : x[0]) {
            value -= all.largest;
            const C e = exp(value);
            all.sum += e;
            if (!LOGARITHMIC) value = e;
        }
    });
    all.sum = sum_of(all.sum, lanes);
    const C by = scale_of(all);
    line.for_each([&](auto& x, u64 at, int) {
        for (C& value : x[0]) value = LOGARITHMIC ? value - by : value * by;
        store(p.out, first + at, x[0]);
    });
#else
    line.for_each([&](auto& x, u64, int) { all = merge(all, exponentials(x[0])); });
    all = merged(all, lanes, NOTHING, merge);
    const C by = scale_of(all);
    line.for_each([&](auto& x, u64 at, int) {
        for (C& value : x[0]) value = value_of(value, all, by);
        store(p.out, first + at, x[0]);
    });
#endif
#endif
}
#endif
