// Normalisation of rows, less their mean and over their deviation, and its gradients. The host has put lines.cu before
// this, and has defined `BACKWARD`, 0 or 1. Rows have no edges.

struct Params {
    u64 out;
    // The input; or with `BACKWARD` the output's gradient, the tensor to add the result to if there are three, and the
    // input.
    u64 arrays[ARRAYS];
    // A number for each element of a row, or 0.
    u64 weight, bias;
    // A number for each row. If `mean` is 0, no mean is subtracted.
    u64 mean, rstd;
    // The sums of the gradients of weight and bias, a part for each block.
    u64 parts;
    u64 eps;
    u64 n, rows;
    // The number of rows of a block, if its threads take several rows each.
    u64 length;
    u64 lanes;
};

template <int W> DEVICE void load(u64 array, u64 first, C none, C (&x)[W]) {
    Pack<T, W> pack;
    if (array != 0) pack = *(const Pack<T, W>*)((const T*)array + first);
    for (int i = 0; i < W; i++) x[i] = array != 0 ? cast<C>(pack.of[i]) : none;
}

#if BACKWARD
struct Sums {
    C grads, products;
};

// Two blocks on one multiprocessor hide each other's waits, if threads keep few vectors.
extern "C" __global__ void __launch_bounds__(THREADS, ITEMS == 1 ? 2 : 1) kernel(const __grid_constant__ Params p) {
    const u32 lanes = (u32)p.lanes, team = threadIdx.x / lanes, teams = blockDim.x / lanes;
    C* const parts = (C*)p.parts + blockIdx.x * 2 * p.n;
    // The sums over all rows of the thread's elements, if they are kept; else sums are in memory.
    C to_weight[KEPT][V], to_bias[KEPT][V];
    for (int k = 0; k < KEPT; k++)
        for (int i = 0; i < V; i++) to_weight[k][i] = to_bias[k][i] = (C)0;
    if (ITEMS == 0) {
        for (u64 at = threadIdx.x; at < 2 * p.n; at += blockDim.x) parts[at] = (C)0;
        __syncthreads();
    }
    const u64 begin = blockIdx.x * p.length, end = begin + p.length < p.rows ? begin + p.length : p.rows;
    for (u64 next = begin; next < end; next += teams) {
        const u64 row = next + team;
        const bool is_there = row < end;
        Line line(p.arrays, row, is_there, p.n, lanes);
        const C mean = is_there && p.mean != 0 ? ((const C*)p.mean)[row] : (C)0;
        const C rstd = is_there ? ((const C*)p.rstd)[row] : (C)0;
        Sums sums = {(C)0, (C)0};
        line.for_each([&](auto& x, u64 at, int k) {
            constexpr int W = sizeof(x[0]) / sizeof(C);
            C weight[W];
            load(p.weight, at, (C)1, weight);
            for (int i = 0; i < W; i++) {
                const C grad = x[0][i], deviation = x[ARRAYS - 1][i] - mean;
                if (ITEMS > 0) {
                    to_weight[k][i] += grad * deviation * rstd;
                    to_bias[k][i] += grad;
                } else {
                    parts[at + i] += grad * deviation * rstd;
                    parts[p.n + at + i] += grad;
                }
                x[0][i] = grad * weight[i];
                x[ARRAYS - 1][i] = deviation;
                sums.grads += x[0][i];
                sums.products += x[0][i] * deviation;
            }
        });
        sums = merged(sums, lanes, Sums{(C)0, (C)0}, [](Sums a, Sums b) {
            return Sums{a.grads + b.grads, a.products + b.products};
        });
        const C slope = rstd * rstd * sums.products / (C)p.n, shift = p.mean != 0 ? sums.grads / (C)p.n : (C)0;
        line.for_each([&](auto& x, u64 at, int) {
            constexpr int W = sizeof(x[0]) / sizeof(C);
            C weight[W], to[W];
            if (ITEMS == 0) load(p.weight, at, (C)1, weight);
            for (int i = 0; i < W; i++) {
                // Vectors that are not kept are read again, without the changes above.
                const C grad = ITEMS > 0 ? x[0][i] : x[0][i] * weight[i];
                const C deviation = ITEMS > 0 ? x[ARRAYS - 1][i] : x[ARRAYS - 1][i] - mean;
                to[i] = (ARRAYS > 2 ? x[1][i] : (C)0) + (grad - shift - deviation * slope) * rstd;
            }
            store(p.out, row * p.n + at, to);
        });
    }
    if (ITEMS == 0) return;
    // The teams' sums are added one team after the other.
    extern __shared__ u64 shared[];
    C* const all = teams == 1 ? parts : (C*)shared;
    const u64 vectors = p.n / V;
    for (u32 turn = 0; turn < teams; turn++) {
        if (turn > 0) __syncthreads();
        if (team != turn) continue;
        for (int k = 0; k < KEPT; k++) {
            const u64 at = threadIdx.x % lanes + (u64)k * lanes;
            if (at >= vectors) continue;
            for (int i = 0; i < V; i++) {
                C *const weight = all + at * V + i, *const bias = weight + p.n;
                *weight = turn > 0 ? *weight + to_weight[k][i] : to_weight[k][i];
                *bias = turn > 0 ? *bias + to_bias[k][i] : to_bias[k][i];
            }
        }
    }
    if (teams == 1) return;
    __syncthreads();
    for (u64 at = threadIdx.x; at < 2 * p.n; at += blockDim.x) parts[at] = all[at];
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u32 lanes = (u32)p.lanes;
    const u64 row = row_of(lanes), first = row * p.n;
    const bool is_there = row < p.rows;
    Line line(p.arrays, row, is_there, p.n, lanes);
    C mean = (C)0, squares = (C)0;
    if (p.mean != 0) {
        line.for_each([&](auto& x, u64, int) {
            for (C value : x[0]) mean += value;
        });
        mean = sum_of(mean, lanes) / (C)p.n;
    }
    line.for_each([&](auto& x, u64, int) {
        for (C value : x[0]) squares += (value - mean) * (value - mean);
    });
    squares = sum_of(squares, lanes);
    const C rstd = (C)1 / sqrt(squares / (C)p.n + number<C>(p.eps));
    line.for_each([&](auto& x, u64 at, int) {
        constexpr int W = sizeof(x[0]) / sizeof(C);
        C weight[W], bias[W];
        load(p.weight, at, (C)1, weight);
        load(p.bias, at, (C)0, bias);
        for (int i = 0; i < W; i++) x[0][i] = (x[0][i] - mean) * rstd * weight[i] + bias[i];
        store(p.out, first + at, x[0]);
    });
    if (!is_there || line.lane != 0) return;
    if (p.mean != 0) ((C*)p.mean)[row] = mean;
    ((C*)p.rstd)[row] = rstd;
}
#endif
