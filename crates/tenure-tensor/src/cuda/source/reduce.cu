// Reductions over dimensions. The host has defined `INPUTS` and `OUTPUTS`, their numbers; `From`, `Given` and `To`, the
// types in memory; `C`, the type to compute in; `V`, the number of neighbours that are read at once; `RANK`; `Index`;
// the kernel's kind, `ROWS`, `COLUMNS` or `PARTS`; and `Fold`.
//
// `ROWS` reduces neighbours in memory to one output: `lanes` neighbouring threads share it. `COLUMNS` reduces to
// neighbouring outputs: `lanes` threads have neighbouring outputs, and threads a multiple of `lanes` apart share them.
// Blocks that share outputs leave their sums to `PARTS`. The order of additions depends on sizes alone.

#define THREADS 256
#define WARP 32
// The number of loads that a thread has in flight.
#define U (V * sizeof(From) < 8 ? 8 : 4)

// A dimension that is kept or reduced: its distances in bytes, and the outputs' distance in elements.
struct Dim {
    u64 size;
    u64 steps[INPUTS];
    u64 output;
};

struct Params {
    u64 inputs[INPUTS];
    u64 outputs[OUTPUTS];
    u64 given;
    // The sums of blocks that share outputs, if there are any.
    u64 parts;
    // The number of outputs in all, and of elements in each.
    u64 total, count;
    // The sizes along kept and along reduced dimensions, in vectors for one of them, and the reduced length of a block.
    u64 kept_size, reduced_size, length;
    u64 lanes;
    u64 kept_rank, reduced_rank;
    // The kept dimensions, then the reduced ones.
    Dim dims[RANK];
};

// Adds the offsets of element number `at` along some dimensions to the inputs' offsets. Returns the output's offset.
DEVICE Index place(const Params& p, u32 first, u32 rank, Index at, Index (&offsets)[INPUTS]) {
    Index output = 0;
    // Mostly there is one dimension, and the loop is inlined in many places.
#pragma unroll 1
    for (u32 d = first; d < first + rank; d++) {
        const Dim& dim = p.dims[d];
        const Index rest = d + 1 < first + rank ? at / (Index)dim.size : 0, i = at - rest * (Index)dim.size;
        for (int n = 0; n < INPUTS; n++) offsets[n] += i * (Index)dim.steps[n];
        output += i * (Index)dim.output;
        at = rest;
    }
    return output;
}

DEVICE C given_for(const Params& p, u64 output) {
    return p.given == 0 ? (C)0 : cast<C>(((const Given*)p.given)[output]);
}

DEVICE void write(const Params& p, u64 output, const Fold::Sum& sum, C given) {
    if (p.parts != 0) {
        ((Fold::Sum*)p.parts)[blockIdx.y * p.total + output] = sum;
        return;
    }
    To values[OUTPUTS];
    Fold::finish(sum, given, (i64)p.count, values);
    for (int k = 0; k < OUTPUTS; k++) ((To*)p.outputs[k])[output] = values[k];
}

// Neighbours of all inputs.
struct Loaded {
    Pack<From, V> of[INPUTS];
    DEVICE void load(const Params& p, const Index (&offsets)[INPUTS]) {
        for (int n = 0; n < INPUTS; n++) of[n] = *(const Pack<From, V>*)(p.inputs[n] + offsets[n]);
    }
};

// Merges the sums of `width` neighbouring threads into the first.
DEVICE Fold::Sum merge_down(Fold::Sum sum, u32 width) {
    for (u32 by = width / 2; by > 0; by /= 2) {
        Fold::Sum other;
        for (int w = 0; w < sizeof(sum) / 4; w++)
            ((u32*)&other)[w] = __shfl_down_sync(0xffffffffu, ((const u32*)&sum)[w], by, width);
        sum = Fold::merge(sum, other);
    }
    return sum;
}

// Merges the sums of threads that are a multiple of `lanes` apart into the first.
template <int W> DEVICE void merge_below(Fold::Sum (&sums)[W], u32 lanes) {
    if (lanes == THREADS) return;
    __shared__ Fold::Sum slots[W * THREADS];
    const u32 t = threadIdx.x;
    for (int w = 0; w < W; w++) slots[w * THREADS + t] = sums[w];
    for (u32 by = THREADS / 2; by >= lanes; by /= 2) {
        __syncthreads();
        if (t >= by) continue;
        for (int w = 0; w < W; w++) {
            sums[w] = Fold::merge(sums[w], slots[w * THREADS + t + by]);
            slots[w * THREADS + t] = sums[w];
        }
    }
}

#ifdef ROWS
DEVICE void run(const Params& p) {
    const u32 lanes = (u32)p.lanes, lane = threadIdx.x % lanes;
    const u64 row = (u64)blockIdx.x * (THREADS / lanes) + threadIdx.x / lanes;
    const bool is_there = row < p.kept_size;
    Fold::Sum sum = Fold::start();
    Index first[INPUTS] = {};
    u64 output = 0;
    C given = (C)0;
    if (is_there) {
        output = place(p, 0, (u32)p.kept_rank, (Index)row, first);
        given = given_for(p, output);
        const Index begin = (Index)(blockIdx.y * p.length);
        const Index size = (Index)p.reduced_size, length = (Index)p.length;
        const Index end = begin < size ? (size - begin < length ? size : begin + length) : begin;
        for (Index at = begin + lane; at < end; at += U * lanes) {
            Loaded loaded[U];
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                if (u > 0 && end - at <= u * lanes) continue;
                Index offsets[INPUTS];
                for (int n = 0; n < INPUTS; n++) offsets[n] = first[n];
                place(p, (u32)p.kept_rank, (u32)p.reduced_rank, at + u * lanes, offsets);
                loaded[u].load(p, offsets);
            }
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                if (u > 0 && end - at <= u * lanes) continue;
                C x[INPUTS][V];
                for (int n = 0; n < INPUTS; n++)
                    for (int i = 0; i < V; i++) x[n][i] = cast<C>(loaded[u].of[n].of[i]);
                Fold::step<V>(sum, x, given, ((i64)at + u * lanes) * V, 1);
            }
        }
    }
    sum = merge_down(sum, lanes < WARP ? lanes : WARP);
    if (lanes > WARP) {
        __shared__ Fold::Sum slots[THREADS / WARP];
        if (lane % WARP == 0) slots[threadIdx.x / WARP] = sum;
        __syncthreads();
        if (lane == 0)
            for (u32 warp = 1; warp < lanes / WARP; warp++) sum = Fold::merge(sum, slots[threadIdx.x / WARP + warp]);
    }
    if (is_there && lane == 0) write(p, output, sum, given);
}
#endif

#ifdef COLUMNS
// Adds `G` rows, each `below` rows after the one before.
template <int G>
DEVICE void add(const Params& p, const Index (&first)[INPUTS], Index at, u32 below, const C (&given)[V], Fold::Sum (&sums)[V]) {
    Loaded loaded[G];
#pragma unroll
    for (u32 u = 0; u < G; u++) {
        Index offsets[INPUTS];
        for (int n = 0; n < INPUTS; n++) offsets[n] = first[n];
        place(p, (u32)p.kept_rank, (u32)p.reduced_rank, at + u * below, offsets);
        loaded[u].load(p, offsets);
    }
#pragma unroll
    for (int i = 0; i < V; i++) {
        C x[INPUTS][G];
        for (int n = 0; n < INPUTS; n++)
            for (u32 u = 0; u < G; u++) x[n][u] = cast<C>(loaded[u].of[n].of[i]);
        Fold::step<G>(sums[i], x, given[i], (i64)at, below);
    }
}

DEVICE void run(const Params& p) {
    const u32 lanes = (u32)p.lanes, below = THREADS / lanes;
    const u64 column = (u64)blockIdx.x * lanes + threadIdx.x % lanes;
    const bool is_there = column < p.kept_size;
    Fold::Sum sums[V];
    C given[V];
    for (int i = 0; i < V; i++) sums[i] = Fold::start();
    Index first[INPUTS] = {};
    u64 output = 0;
    if (is_there) {
        output = place(p, 0, (u32)p.kept_rank, (Index)column, first);
        const u64 step = p.kept_rank == 0 ? 0 : p.dims[0].output / V;
        for (int i = 0; i < V; i++) given[i] = given_for(p, output + i * step);
        const Index begin = (Index)(blockIdx.y * p.length);
        const Index size = (Index)p.reduced_size, length = (Index)p.length;
        const Index end = begin < size ? (size - begin < length ? size : begin + length) : begin;
        Index at = begin + threadIdx.x / lanes;
        for (; at < end && end - at > (U - 1) * below; at += U * below) add<U>(p, first, at, below, given, sums);
#pragma unroll 1
        for (; at < end; at += below) add<1>(p, first, at, below, given, sums);
    }
    merge_below(sums, lanes);
    if (!is_there || threadIdx.x >= lanes) return;
    const u64 step = p.kept_rank == 0 ? 0 : p.dims[0].output / V;
    for (int i = 0; i < V; i++) write(p, output + i * step, sums[i], given[i]);
}
#endif

#ifdef PARTS
// Computes outputs from the sums of `reduced_size` blocks.
DEVICE void run(const Params& p) {
    const u32 lanes = (u32)p.lanes, below = THREADS / lanes;
    const u64 output = (u64)blockIdx.x * lanes + threadIdx.x % lanes;
    Fold::Sum sums[1] = {Fold::start()};
    if (output < p.total) {
#pragma unroll 4
        for (u64 part = threadIdx.x / lanes; part < p.reduced_size; part += below)
            sums[0] = Fold::merge(sums[0], ((const Fold::Sum*)p.parts)[part * p.total + output]);
    }
    merge_below(sums, lanes);
    if (output >= p.total || threadIdx.x >= lanes) return;
    To values[OUTPUTS];
    Fold::finish(sums[0], given_for(p, output), (i64)p.count, values);
    for (int k = 0; k < OUTPUTS; k++) ((To*)p.outputs[k])[output] = values[k];
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 3) kernel(const __grid_constant__ Params p) { run(p); }
