// Dimensions made one. The host has defined `INPUTS`, the inputs; `OUTPUTS`, the outputs; `From`, `Given` and `To`, what is in
// memory; `C`, what is computed in; `V`, the neighbours that are read at once; `RANK`; `Index`; what the kernel does,
// `ROWS`, `COLUMNS` or `PARTS`; and `Fold`, how.
//
// Neighbours in memory are reduced to one output by `ROWS`, where some threads side by side, the `lanes`, have one output;
// and to as many by `COLUMNS`, where `lanes` threads have outputs side by side, and those below them the same ones. Blocks
// that share outputs leave their sums to `PARTS`. Who adds what to what depends on sizes alone.

#define THREADS 256
#define WARP 32
// Loads of a thread that are under way at once.
#define U (V * sizeof(From) < 8 ? 8 : 4)

// A dimension that is kept or reduced: distances in bytes, and that of outputs in elements.
struct Dim {
    u64 size;
    u64 steps[INPUTS];
    u64 output;
};

struct Params {
    u64 inputs[INPUTS];
    u64 outputs[OUTPUTS];
    u64 given;
    // Sums of blocks that share outputs, if there are any.
    u64 parts;
    // Outputs in all, and elements that each is made of.
    u64 total, count;
    // What there is along kept and along reduced dimensions: vectors in one of them. And of the latter, for a block.
    u64 kept_size, reduced_size, length;
    u64 lanes;
    u64 kept_rank, reduced_rank;
    // Those that are kept, then the others.
    Dim dims[RANK];
};

// Adds the place of number `at` along dimensions to offsets of the inputs. Returns that of the output.
DEVICE Index place(const Params& p, u32 first, u32 rank, Index at, Index (&offsets)[INPUTS]) {
    Index output = 0;
    // Mostly there is one, and the loop is inlined often.
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

// Merges what threads of `width` neighbours have, in the first of them.
DEVICE Fold::Sum merge_down(Fold::Sum sum, u32 width) {
    for (u32 by = width / 2; by > 0; by /= 2) {
        Fold::Sum other;
        for (int w = 0; w < sizeof(sum) / 4; w++)
            ((u32*)&other)[w] = __shfl_down_sync(0xffffffffu, ((const u32*)&sum)[w], by, width);
        sum = Fold::merge(sum, other);
    }
    return sum;
}

// Merges what threads have that are a multiple of `lanes` apart, in the first of them.
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
// Makes outputs of the sums of `reduced_size` blocks.
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
