// Contiguous rows, each walked by several threads together: lanes of a warp, or whole warps. The host has defined `T`,
// the type in memory; `C`, the type to compute in; `V`, the number of elements that are read at once; `ARRAYS`, the
// number of arrays whose rows are walked together; and `ITEMS`, the number of vectors of each array that a thread
// keeps, or 0 if rows are too long to keep and are read again each time.
//
// The vectors of a row begin at the first aligned element; the elements before the first vector and after the last are
// the row's edges. If fewer than `WARP` threads share a row, there are no edges.

#define WARP 32
#define KEPT (ITEMS > 0 ? ITEMS : 1)
// The number of loads that a thread has in flight if nothing is kept.
#define U 4

// Merges the values of a row's threads; all get the result. Every thread of the block must call it.
template <typename S, typename Merge> DEVICE S merged(S x, u32 lanes, S none, Merge merge) {
    const u32 side_by_side = lanes < WARP ? lanes : WARP;
    for (u32 by = side_by_side / 2; by > 0; by /= 2) {
        S other;
        for (int w = 0; w < sizeof(S) / 4; w++)
            ((u32*)&other)[w] = __shfl_xor_sync(0xffffffffu, ((const u32*)&x)[w], by, WARP);
        x = merge(x, other);
    }
    if (lanes <= WARP) return x;
    __shared__ S slots[WARP];
    const u32 warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, warps = lanes / WARP, first = warp / warps * warps;
    if (lane == 0) slots[warp] = x;
    __syncthreads();
    x = lane < warps ? slots[first + lane] : none;
    __syncthreads();
    for (u32 by = WARP / 2; by > 0; by /= 2) {
        S other;
        for (int w = 0; w < sizeof(S) / 4; w++)
            ((u32*)&other)[w] = __shfl_xor_sync(0xffffffffu, ((const u32*)&x)[w], by, WARP);
        x = merge(x, other);
    }
    return x;
}

DEVICE C sum_of(C x, u32 lanes) {
    return merged(x, lanes, (C)0, [](C a, C b) { return a + b; });
}

// A thread's part of a row.
struct Line {
    // The numbers of elements, of elements before the vectors, and of vectors.
    u64 n, head, vectors;
    u32 lane, lanes;
    const T* from[ARRAYS];
    C kept[KEPT][ARRAYS][V];
    C edge[ARRAYS][1];

    // Creates the part of row number `row`, if that exists; all arrays have the same alignment.
    DEVICE Line(const u64 (&arrays)[ARRAYS], u64 row, bool is_there, u64 size, u32 lanes) : lanes(lanes) {
        lane = threadIdx.x % lanes;
        n = is_there ? size : 0;
        for (int a = 0; a < ARRAYS; a++) from[a] = (const T*)arrays[a] + (is_there ? row * size : 0);
        head = (V - (u64)from[0] / sizeof(T) % V) % V;
        if (head > n) head = n;
        vectors = (n - head) / V;
        for (int k = 0; k < ITEMS; k++) {
            const u64 at = lane + (u64)k * lanes;
            if (at < vectors) read(head + at * V, kept[k]);
        }
        if (ITEMS > 0 && lane < edges()) read(edge_at(lane), edge);
    }

    DEVICE u64 edges() const { return n - vectors * V; }
    DEVICE u64 edge_at(u64 number) const { return number < head ? number : number + vectors * V; }

    template <int W> DEVICE void load(u64 first, Pack<T, W> (&packs)[ARRAYS]) const {
        for (int a = 0; a < ARRAYS; a++) packs[a] = *(const Pack<T, W>*)(from[a] + first);
    }

    template <int W> static DEVICE void convert(const Pack<T, W> (&packs)[ARRAYS], C (&x)[ARRAYS][W]) {
        for (int a = 0; a < ARRAYS; a++)
            for (int i = 0; i < W; i++) x[a][i] = cast<C>(packs[a].of[i]);
    }

    template <int W> DEVICE void read(u64 first, C (&x)[ARRAYS][W]) const {
        Pack<T, W> packs[ARRAYS];
        load(first, packs);
        convert(packs, x);
    }

    // Calls `each(x, first, k)` for all vectors and edges of this thread: `x[array]` are elements from number `first`
    // on, and `k` is the number of a kept vector. `each` may change kept vectors.
    template <typename F> DEVICE void for_each(F each) {
        if (ITEMS > 0) {
#pragma unroll
            for (int k = 0; k < KEPT; k++) {
                const u64 at = lane + (u64)k * lanes;
                if (at < vectors) each(kept[k], head + at * V, k);
            }
            if (lane < edges()) each(edge, edge_at(lane), 0);
            return;
        }
        for (u64 at = lane; at < vectors; at += U * lanes) {
            Pack<T, V> packs[U][ARRAYS];
#pragma unroll
            for (u32 u = 0; u < U; u++)
                if (at + u * lanes < vectors) load(head + (at + u * lanes) * V, packs[u]);
#pragma unroll
            for (u32 u = 0; u < U; u++) {
                if (at + u * lanes >= vectors) continue;
                C x[ARRAYS][V];
                convert(packs[u], x);
                each(x, head + (at + u * lanes) * V, 0);
            }
        }
        for (u64 number = lane; number < edges(); number += lanes) {
            C x[ARRAYS][1];
            read(edge_at(number), x);
            each(x, edge_at(number), 0);
        }
    }
};

template <int W> DEVICE void store(u64 array, u64 first, const C (&x)[W]) {
    Pack<T, W> pack;
    for (int i = 0; i < W; i++) pack.of[i] = cast<T>(x[i]);
    *(Pack<T, W>*)((T*)array + first) = pack;
}

// Returns the row that the thread has a part of. The row may not exist.
DEVICE u64 row_of(u32 lanes) { return (u64)blockIdx.x * (blockDim.x / lanes) + threadIdx.x / lanes; }
