// Attention in 16-bit floats with matrix units, and its gradients, after FlashAttention-2 (Dao, 2023): a warp holds 16
// queries, or keys, and their weights in registers, and the others pass by in shared memory. The host has defined
// `Stored`, the 16-bit type; `HALF`, its name in PTX; `T`, float; `WIDTH` and `VALUE_WIDTH`, at least the widths of
// queries and values, and at most 256; `MASK`, 0 without a mask, 1 for bool, 2 for numbers to add; `DROPS`, whether
// weights are dropped; and one of ATTEND, TO_QUERIES and TO_KEYS.

#define THREADS 128
// The number of rows that a block holds, and the first row of a warp.
#define BLOCK (THREADS / 32 * 16)
#define WARP (threadIdx.x / 32 * 16)
#define WIDEST (WIDTH > VALUE_WIDTH ? WIDTH : VALUE_WIDTH)
// The number of rows that pass at a time: twice as many fit into a block's shared memory.
#define PASSING (WIDEST > 64 ? 4096 / WIDEST : 64)
// The gap between rows, which puts eight of them into different banks.
#define GAP 8
#define LOG2_E 1.4426950408889634f
// The number of blocks that a multiprocessor runs at once, limited by registers.
#ifdef ATTEND
#define TOGETHER (WIDEST > 64 ? 2 : 3)
#else
#define TOGETHER 2
#endif

// Keys and values, or queries and the gradients of their means.
struct alignas(16) Passing {
    Stored a[PASSING][WIDTH + GAP];
    Stored b[PASSING][VALUE_WIDTH + GAP];
#ifdef TO_KEYS
    Pack<float, 2> inner[PASSING];
#endif
};

// Begins to load rows, padded with zeros.
template <int SIZE> DEVICE void load(Stored (&to)[PASSING][SIZE + GAP], Rows from, u64 columns) {
    // The number of threads that load a row, eight elements each, and the number of rows loaded at a time.
    constexpr int SHARE = SIZE / 8, STEP = THREADS / SHARE;
    const int count = from.count, there = columns;
    if (((u64)from.data | (from.stride | columns) * sizeof(Stored)) % 16 == 0) {
        const int first = threadIdx.x / SHARE, column = threadIdx.x % SHARE * 8;
#pragma unroll
        for (int row = first; row < first + PASSING; row += STEP)
            if (PASSING % STEP == 0 || row < PASSING)
                copy<16>(&to[row][column], from.data + row * from.stride + column, row < count && column < there);
        return;
    }
    for (int i = threadIdx.x; i < PASSING * SIZE; i += THREADS) {
        const int row = i / SIZE, column = i % SIZE;
        const bool is_there = row < count && column < there;
        to[row][column] = is_there ? from.data[row * from.stride + column] : Stored{0};
    }
}

// Loads a thread's part of the rows of a warp.
template <int SIZE> DEVICE void hold(u32 (&to)[SIZE / 16][4], Rows from, u64 columns) {
    const bool is_aligned = ((u64)from.data | (from.stride | columns) * sizeof(Stored)) % 4 == 0;
    for (int i = 0; i < 2; i++) {
        const u64 row = WARP + ROW + i * 8;
        const Stored* source = from.data + row * from.stride + COLUMN;
        // The number of columns from the thread's first on.
        const int end = row < from.count ? (int)columns - (int)COLUMN : 0;
        if (is_aligned)
            for (int k = 0; k < SIZE / 8; k++)
                to[k / 2][k % 2 * 2 + i] = k * 8 < end ? *(const u32*)(source + k * 8) : 0;
        else
            for (int k = 0; k < SIZE / 8; k++) {
                const u32 first = k * 8 < end ? source[k * 8].bits : 0;
                const u32 second = k * 8 + 1 < end ? source[k * 8 + 1].bits : 0;
                to[k / 2][k % 2 * 2 + i] = first | second << 16;
            }
    }
}

// Multiplies held rows with passing ones.
template <int SIZE>
DEVICE void score(float (&scores)[PASSING / 8][4], const u32 (&held)[SIZE / 16][4],
                  const Stored (&passing)[PASSING][SIZE + GAP]) {
    for (int n = 0; n < PASSING / 8; n++)
        for (int i = 0; i < 4; i++) scores[n][i] = 0;
#pragma unroll
    for (int k = 0; k < SIZE / 16; k++)
#pragma unroll
        for (int n = 0; n < PASSING / 8; n += 2) {
            u32 b[4];
            read(b, &passing[n * 8 + LANE / 16 * 8 + LANE % 8][k * 16 + LANE / 8 % 2 * 8]);
            multiply(scores[n], held[k], b[0], b[1]);
            multiply(scores[n + 1], held[k], b[2], b[3]);
        }
}

// Adds passing rows times weights. With `IS_EXACT`, each weight is the sum of two 16-bit floats.
template <bool IS_EXACT, int SIZE>
DEVICE void accumulate(float (&sums)[SIZE / 8][4], const float (&weights)[PASSING / 8][4],
                       const Stored (&passing)[PASSING][SIZE + GAP]) {
#pragma unroll
    for (int k = 0; k < PASSING / 16; k++) {
        u32 leading[4], rest[4];
        for (int i = 0; i < 4; i++) {
            const float x = weights[2 * k + i / 2][i % 2 * 2], y = weights[2 * k + i / 2][i % 2 * 2 + 1];
            leading[i] = pair(x, y);
            if (IS_EXACT) rest[i] = pair(x - first_of(leading[i]), y - second_of(leading[i]));
        }
#pragma unroll
        for (int n = 0; n < SIZE / 8; n += 2) {
            u32 b[4];
            read_transposed(b, &passing[k * 16 + LANE % 16][n * 8 + LANE / 16 * 8]);
            multiply(sums[n], leading, b[0], b[1]);
            multiply(sums[n + 1], leading, b[2], b[3]);
            if (!IS_EXACT) continue;
            multiply(sums[n], rest, b[0], b[1]);
            multiply(sums[n + 1], rest, b[2], b[3]);
        }
    }
}

template <int SIZE>
DEVICE void write(const float (&sums)[SIZE / 8][4], const float (&factors)[2], Rows to, u64 columns) {
    const bool is_aligned = ((u64)to.data | (to.stride | columns) * sizeof(Stored)) % 4 == 0;
    for (int i = 0; i < 2; i++) {
        const u64 row = WARP + ROW + i * 8;
        Stored* at = to.data + row * to.stride + COLUMN;
        const int end = row < to.count ? (int)columns - (int)COLUMN : 0;
        for (int n = 0; n < SIZE / 8; n++) {
            const u32 both = pair(sums[n][2 * i] * factors[i], sums[n][2 * i + 1] * factors[i]);
            if (is_aligned) {
                if (n * 8 < end) *(u32*)(at + n * 8) = both;
                continue;
            }
            if (n * 8 < end) at[n * 8] = {(u16)both};
            if (n * 8 + 1 < end) at[n * 8 + 1] = {(u16)(both >> 16)};
        }
    }
}

#if DROPS
// Returns which of some weights are kept, as a bit for each. The first weight is at the place `first` in the order of
// all.
template <int COUNT> DEVICE u32 draw(const State& state, u32 last, u64 first) {
    u64 bits = 0;
#pragma unroll
    for (int i = 0; i <= COUNT / 4; i++) {
        if (i == COUNT / 4 && first % 4 == 0) break;
        u32 w[4], four = 0;
        philox(state, first / 4 + i, w);
        for (int j = 0; j < 4; j++) four |= w[j] <= last ? 1u << j : 0;
        bits |= (u64)four << (4 * i);
    }
    return bits >> first % 4;
}
#endif

// The weights of a thread that are kept, of its warp's rows and the passing ones. Each thread draws for some weights,
// four for each block of random words, and passes the bits on to other threads.
struct Kept {
    u32 bits[4][2];

    // Draws for all weights. The first is at the place `first`; the next query's row is `keys` further on.
    DEVICE void draw_all(const State& state, u32 last, u64 first, u64 keys) {
#if DROPS
#ifdef TO_KEYS
        // Each thread draws for one or two of the passing queries, 16 keys each.
        u32 drawn = 0;
        for (int i = 0; i < PASSING; i += 32)
            drawn |= (draw<16>(state, last, first + (i + LANE) * keys) & 0xffff) << (i / 2);
        for (int n = 0; n < 4; n++)
            for (int i = 0; i < 2; i++) bits[n][i] = __shfl_sync(ALL, drawn, n * 8 + COLUMN + i) >> ROW;
#else
        // Each thread draws for half of the passing keys, of one query.
        const u32 drawn = draw<PASSING / 2>(state, last, first + LANE / 2 * keys + LANE % 2 * (PASSING / 2));
        for (int i = 0; i < 2; i++)
            for (int half = 0; half < 2; half++)
                bits[i][half] = __shfl_sync(ALL, drawn, (ROW + i * 8) * 2 + half) >> COLUMN;
#endif
#endif
    }

    DEVICE bool has(int n, int i) const {
#if !DROPS
        return true;
#elif defined(TO_KEYS)
        return bits[n % 4][i % 2] >> (n / 4 * 16 + i / 2 * 8) & 1;
#else
        return bits[i / 2][n / (PASSING / 16)] >> (n % (PASSING / 16) * 8 + i % 2) & 1;
#endif
    }
};

// Masks scores; the first is of `query` and `key`. Returns the factor to multiply them with before taking powers of
// two.
DEVICE float show(const Params& p, float (&scores)[PASSING / 8][4], bool is_all, u64 batch, u64 head, u64 query,
                  u64 key) {
    const float scale = number<float>(p.scale);
    // If the scale is negative, the largest score does not give the largest product.
    if (is_all && !MASK && scale >= 0) return scale * LOG2_E;
    for (int i = 0; i < 2; i++) {
        // The range of columns of a row that are seen.
#ifdef TO_KEYS
        const u64 at[2] = {query, key + ROW + i * 8};
        const int begin = p.is_causal && at[1] > query ? least(PASSING, at[1] - query) : 0;
        const int end = at[1] < p.keys ? least(PASSING, p.queries - query) : 0;
        const u64 step = p.mask_strides[2];
#else
        const u64 at[2] = {query + ROW + i * 8, key}, seen = p.is_causal ? least(p.keys, at[0] + 1) : p.keys;
        const int begin = 0, end = at[0] < p.queries && seen > key ? least(PASSING, seen - key) : 0;
        const u64 step = p.mask_strides[3];
#endif
        const u64 place = batch * p.mask_strides[0] + head * p.mask_strides[1] + at[0] * p.mask_strides[2] +
                          at[1] * p.mask_strides[3];
        for (int n = 0; n < PASSING / 8; n++)
            for (int j = 0; j < 2; j++) {
                const int column = n * 8 + COLUMN + j;
                const bool is_there = column >= begin && column < end;
                float score = scores[n][2 * i + j] * scale;
                // Columns that do not exist read the first element instead, so that all are read together without
                // branches.
                const u64 of_mask = is_there ? place + column * step : 0;
#if MASK == 1
                if (!((const bool*)p.mask)[of_mask]) score = HIDDEN;
#elif MASK == 2
                score += widen(((const Stored*)p.mask)[of_mask]);
#endif
                scores[n][2 * i + j] = is_there ? score : HIDDEN;
            }
    }
    return LOG2_E;
}

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) kernel(const __grid_constant__ Params p) {
    __shared__ Passing tiles[2];
    Kept kept;
#if DROPS
    State state = begin(p.state);
    // The seed is the same for all threads, but the compiler cannot know that of a loaded value. With this it computes
    // the keys once a warp.
    state.seed = __reduce_or_sync(ALL, (u32)state.seed) | (u64)__reduce_or_sync(ALL, (u32)(state.seed >> 32)) << 32;
    const u32 last = (u32)(p.limit - 1);
    // If no weight is kept, the factor is not finite.
    const float kept_scale = p.limit == 0 ? 0 : number<float>(p.kept_scale);
#else
    const State state = {};
    const u32 last = 0;
    const float kept_scale = 1;
#endif

#ifdef OF_QUERIES
    const u64 blocks = (p.queries + BLOCK - 1) / BLOCK;
    // The longest parts go first: with a causal mask, later queries see more keys.
    const u64 at = blockIdx.x / blocks, first = (blocks - 1 - blockIdx.x % blocks) * BLOCK, query = first + WARP;
    const u64 batch = at / p.heads, head = at % p.heads, kv = head / p.group, row_of_sums = at * p.queries;
    const u64 rows = least(BLOCK, p.queries - first), end = p.is_causal ? least(p.keys, first + rows) : p.keys;
    u32 q[WIDTH / 16][4];
    hold<WIDTH>(q, rows_of(p.q, batch, head, first, rows), p.width);
    const auto begin_to_load = [&](u64 key) {
        if (key >= end) return;
        const u64 count = least(PASSING, p.keys - key);
        Passing& to = tiles[key / PASSING % 2];
        load<WIDTH>(to.a, rows_of(p.k, batch, kv, key, count), p.width);
        load<VALUE_WIDTH>(to.b, rows_of(p.v, batch, kv, key, count), p.value_width);
    };
    begin_to_load(0);
#endif

#ifdef ATTEND
    float sums[VALUE_WIDTH / 8][4] = {}, largest[2] = {HIDDEN, HIDDEN}, total[2] = {};
    for (u64 key = 0; key < end; key += PASSING) {
        arrive();
        begin_to_load(key + PASSING);
        const Passing& tile = tiles[key / PASSING % 2];
        float weights[PASSING / 8][4];
        score<WIDTH>(weights, q, tile.a);
        const bool is_all = key + PASSING <= (p.is_causal ? least(p.keys, query + 1) : p.keys);
        const float factor = show(p, weights, is_all, batch, head, query, key);
        kept.draw_all(state, last, (row_of_sums + query) * p.keys + key, p.keys);
        for (int i = 0; i < 2; i++) {
            float now = HIDDEN;
            for (int n = 0; n < PASSING / 8; n++) now = fmaxf(now, fmaxf(weights[n][2 * i], weights[n][2 * i + 1]));
            now = fmaxf(largest[i], largest_of_row(now) * factor);
            // If no key has been seen yet, all weights are zero.
            const float shift = now == HIDDEN ? 0 : now;
            const float before = power_of_two(largest[i] - shift);
            largest[i] = now;
            total[i] *= before;
            for (int n = 0; n < VALUE_WIDTH / 8; n++) sums[n][2 * i] *= before, sums[n][2 * i + 1] *= before;
            for (int n = 0; n < PASSING / 8; n++)
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    const float weight = power_of_two(weights[n][j] * factor - shift);
                    total[i] += weight;
                    weights[n][j] = kept.has(n, j) ? weight : 0;
                }
        }
        accumulate<true, VALUE_WIDTH>(sums, weights, tile.b);
    }
    float factors[2];
    for (int i = 0; i < 2; i++) {
        total[i] = sum_of_row(total[i]);
        factors[i] = total[i] == 0 ? 0 : kept_scale / total[i];
        const u64 row = WARP + ROW + i * 8;
        if (COLUMN == 0 && row < rows)
            ((float*)p.sums)[row_of_sums + first + row] = largest[i] / LOG2_E + log(total[i]);
    }
    write<VALUE_WIDTH>(sums, factors, rows_of(p.out, batch, head, first, rows), p.value_width);
#endif

#ifdef TO_QUERIES
    // Small gradients are differences with the sum of products of weights and their gradients. That sum is near the
    // product of the mean, which was rounded, and its gradient. The remainder is known at the end, and is then
    // subtracted.
    u32 grad[VALUE_WIDTH / 16][4], out[VALUE_WIDTH / 16][4];
    hold<VALUE_WIDTH>(grad, rows_of(p.grad, batch, head, first, rows), p.value_width);
    hold<VALUE_WIDTH>(out, rows_of(p.out, batch, head, first, rows), p.value_width);
    float near[2] = {}, rest[2] = {}, shift[2];
    for (int k = 0; k < VALUE_WIDTH / 16; k++)
        for (int i = 0; i < 4; i++)
            near[i % 2] += first_of(grad[k][i]) * first_of(out[k][i]) + second_of(grad[k][i]) * second_of(out[k][i]);
    for (int i = 0; i < 2; i++) {
        const float sum = ((const float*)p.sums)[row_of_sums + first + least(WARP + ROW + i * 8, rows - 1)];
        near[i] = sum_of_row(near[i]);
        // For a query that sees no key, all weights are zero.
        shift[i] = sum == HIDDEN ? -HIDDEN : sum * LOG2_E;
    }
    float sums[WIDTH / 8][4] = {}, means[WIDTH / 8][4] = {};
    for (u64 key = 0; key < end; key += PASSING) {
        arrive();
        begin_to_load(key + PASSING);
        const Passing& tile = tiles[key / PASSING % 2];
        float weights[PASSING / 8][4], to_weights[PASSING / 8][4];
        score<WIDTH>(weights, q, tile.a);
        const bool is_all = key + PASSING <= (p.is_causal ? least(p.keys, query + 1) : p.keys);
        const float factor = show(p, weights, is_all, batch, head, query, key);
        for (int n = 0; n < PASSING / 8; n++)
            for (int i = 0; i < 4; i++) weights[n][i] = power_of_two(weights[n][i] * factor - shift[i / 2]);
        accumulate<false, WIDTH>(means, weights, tile.a);
        score<VALUE_WIDTH>(to_weights, grad, tile.b);
        kept.draw_all(state, last, (row_of_sums + query) * p.keys + key, p.keys);
        for (int n = 0; n < PASSING / 8; n++)
            for (int i = 0; i < 4; i++) {
                weights[n][i] *= (kept.has(n, i) ? to_weights[n][i] * kept_scale : 0) - near[i / 2];
                rest[i / 2] += weights[n][i];
            }
        accumulate<true, WIDTH>(sums, weights, tile.a);
    }
    const float factors[2] = {number<float>(p.scale), number<float>(p.scale)};
    for (int i = 0; i < 2; i++) {
        rest[i] = sum_of_row(rest[i]);
        for (int n = 0; n < WIDTH / 8; n++)
            for (int j = 2 * i; j < 2 * i + 2; j++) sums[n][j] -= rest[i] * means[n][j];
        const u64 row = WARP + ROW + i * 8;
        if (COLUMN == 0 && row < rows)
            ((Pack<float, 2>*)p.inner)[row_of_sums + first + row] = {shift[i], near[i] + rest[i]};
    }
    write<WIDTH>(sums, factors, rows_of(p.to_q, batch, head, first, rows), p.width);
#endif

#ifdef TO_KEYS
    const u64 blocks = (p.keys + BLOCK - 1) / BLOCK, kv_heads = p.heads / p.group;
    const u64 at = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK, key = first + WARP;
    const u64 batch = at / kv_heads, kv = at % kv_heads, rows = least(BLOCK, p.keys - first);
    u32 k[WIDTH / 16][4], v[VALUE_WIDTH / 16][4];
    hold<WIDTH>(k, rows_of(p.k, batch, kv, first, rows), p.width);
    hold<VALUE_WIDTH>(v, rows_of(p.v, batch, kv, first, rows), p.value_width);
    // The queries that see these keys, of each head that shares the keys.
    const u64 begin_at = p.is_causal ? first : 0;
    const u64 end = begin_at < p.queries ? (kv + 1) * p.group : 0;
    const auto begin_to_load = [&](Passing& to, u64 head, u64 query) {
        if (head >= end) return;
        const u64 count = least(PASSING, p.queries - query), row_of_sums = (batch * p.heads + head) * p.queries;
        load<WIDTH>(to.a, rows_of(p.q, batch, head, query, count), p.width);
        load<VALUE_WIDTH>(to.b, rows_of(p.grad, batch, head, query, count), p.value_width);
        if (threadIdx.x < PASSING)
            copy<8>(&to.inner[threadIdx.x], (const Pack<float, 2>*)p.inner + row_of_sums + query + threadIdx.x,
                    threadIdx.x < count);
    };
    float to_k[WIDTH / 8][4] = {}, to_v[VALUE_WIDTH / 8][4] = {};
    u64 head = kv * p.group, query = begin_at;
    begin_to_load(tiles[0], head, query);
    for (int side = 0; head < end; side ^= 1) {
        arrive();
        const bool is_last = query + PASSING >= p.queries;
        const u64 next_head = head + is_last, next_query = is_last ? begin_at : query + PASSING;
        begin_to_load(tiles[side ^ 1], next_head, next_query);
        const Passing& tile = tiles[side];
        float weights[PASSING / 8][4], kept_weights[PASSING / 8][4];
        score<WIDTH>(weights, k, tile.a);
        // For queries that do not exist, gradients are zero.
        const float factor = show(p, weights, !p.is_causal || key + 15 <= query, batch, head, query, key);
        kept.draw_all(state, last, ((batch * p.heads + head) * p.queries + query) * p.keys + key, p.keys);
        for (int n = 0; n < PASSING / 8; n++)
            for (int i = 0; i < 4; i++) {
                weights[n][i] = power_of_two(weights[n][i] * factor - tile.inner[n * 8 + COLUMN + i % 2].of[0]);
                kept_weights[n][i] = kept.has(n, i) ? weights[n][i] : 0;
            }
        accumulate<true, VALUE_WIDTH>(to_v, kept_weights, tile.b);
        float to_weights[PASSING / 8][4];
        score<VALUE_WIDTH>(to_weights, v, tile.b);
        for (int n = 0; n < PASSING / 8; n++)
            for (int i = 0; i < 4; i++)
                weights[n][i] *= (kept.has(n, i) ? to_weights[n][i] * kept_scale : 0) -
                                 tile.inner[n * 8 + COLUMN + i % 2].of[1];
        accumulate<true, WIDTH>(to_k, weights, tile.a);
        head = next_head, query = next_query;
    }
    const float factors[2] = {number<float>(p.scale), number<float>(p.scale)};
    const float kept_factors[2] = {kept_scale, kept_scale};
    write<WIDTH>(to_k, factors, rows_of(p.to_k, batch, kv, first, rows), p.width);
    write<VALUE_WIDTH>(to_v, kept_factors, rows_of(p.to_v, batch, kv, first, rows), p.value_width);
#endif
}
