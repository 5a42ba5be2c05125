// Attention that does not store the matrix of all weights, and its gradients, after FlashAttention (Dao et al., 2022):
// a block holds some queries, or some keys, and the others pass by. The host has defined `Stored`, the type in memory;
// `T`, the type to compute in; `BLOCK`, the number of queries and keys in a block; `WIDTH` and `VALUE_WIDTH`, at least
// the widths of queries and values; `MASK`, 0 without a mask, 1 for bool, 2 for numbers to add; `DROPS`, whether
// weights are dropped; and one of ATTEND, INNER, EXACT_INNER, TO_QUERIES and TO_KEYS.

// The number of blocks that a multiprocessor runs at once, if their sums are few enough for its registers.
#define TOGETHER (BLOCK == 64 && WIDTH <= 64 && VALUE_WIDTH <= 64 ? 2 : 1)

// Returns a score, scaled and masked.
DEVICE T shown(const Params& p, T score, u64 batch, u64 head, u64 query, u64 key) {
    if (query >= p.queries || key >= p.keys || (p.is_causal && key > query)) return HIDDEN;
    score *= number<T>(p.scale);
#if MASK
    const u64 place = batch * p.mask_strides[0] + head * p.mask_strides[1] + query * p.mask_strides[2] +
                      key * p.mask_strides[3];
#if MASK == 1
    if (!((const bool*)p.mask)[place]) return HIDDEN;
#else
    score += cast<T>(((const Stored*)p.mask)[place]);
#endif
#endif
    return score;
}

// Draws which weights of a block are kept. The first weight is of the query `row`, counted over all heads, and of
// `key`. It must come after the products: then all threads are done with the block before.
DEVICE void draw(const Params& p, Shared& shared, u64 row, u64 key) {
#if DROPS
    const int query = threadIdx.x / DRAWERS, drawer = threadIdx.x % DRAWERS;
    const u64 first = (row + query) * p.keys + key + drawer * DRAWN;
    const State state = begin(p.state);
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i <= DRAWN / 4; i++) {
        if (i == DRAWN / 4 && first % 4 == 0) break;
        u32 w[4];
        philox(state, first / 4 + i, w);
        for (int j = 0; j < 4; j++) bits |= (u32)(w[j] < p.limit) << (4 * i + j);
    }
    shared.kept[query][drawer] = bits >> first % 4;
    __syncthreads();
#endif
}

// Returns a weight, or its gradient, after dropout.
DEVICE T left(const Params& p, const Shared& shared, T x, int query, int key) {
#if DROPS
    const bool is_kept = shared.kept[query][key / DRAWN] >> key % DRAWN & 1;
    return is_kept ? x * number<T>(p.kept_scale) : (T)0;
#else
    return x;
#endif
}

// Returns the largest over the threads that have columns of the same rows.
DEVICE T largest_of_row(T x) {
    for (int lane = SIDE / 2; lane > 0; lane /= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, x, lane);
        x = other > x ? other : x;
    }
    return x;
}

DEVICE T sum_of_row(T x) {
    for (int lane = SIDE / 2; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, TOGETHER) kernel(const __grid_constant__ Params p) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#ifdef INNER
    // Each half of a warp computes a query.
    const u64 row = ((u64)blockIdx.x * THREADS + threadIdx.x) / SIDE, at = row / p.queries;
    // Threads without a query take part in the sums all the same.
    const bool is_there = row < p.batch * p.heads * p.queries;
    T sum = 0;
    if (is_there) {
        const Rows grad = rows_of(p.grad, at / p.heads, at % p.heads, row % p.queries, 1);
        const Rows out = rows_of(p.out, at / p.heads, at % p.heads, row % p.queries, 1);
        for (u64 i = x; i < p.value_width; i += SIDE) sum += cast<T>(grad.data[i]) * cast<T>(out.data[i]);
    }
    sum = sum_of_row(sum);
    if (is_there && x == 0) ((T*)p.inner)[row] = sum;
#else
    __shared__ Shared shared;
#endif

#ifdef OF_QUERIES
    const u64 blocks = (p.queries + BLOCK - 1) / BLOCK;
    // The longest parts go first: with a causal mask, later queries see more keys.
    const u64 at = blockIdx.x / blocks, first = (blocks - 1 - blockIdx.x % blocks) * BLOCK;
    const u64 batch = at / p.heads, head = at % p.heads, kv = head / p.group;
    const u64 rows = least(BLOCK, p.queries - first), end = p.is_causal ? least(p.keys, first + rows) : p.keys;
    const Rows q = rows_of(p.q, batch, head, first, rows);
#endif

#ifdef ATTEND
    T sums[EACH][VALUE_WIDTH / SIDE] = {}, largest[EACH], total[EACH] = {}, before[EACH];
    for (int i = 0; i < EACH; i++) largest[i] = HIDDEN;
    for (u64 key = 0; key < end; key += BLOCK) {
        const u64 columns = least(BLOCK, p.keys - key);
        T scores[EACH][EACH];
        score(shared, scores, q, rows_of(p.k, batch, kv, key, columns), p.width);
        draw(p, shared, at * p.queries + first, key);
        for (int i = 0; i < EACH; i++) {
            T now = largest[i];
            for (int j = 0; j < EACH; j++) {
                scores[i][j] = shown(p, scores[i][j], batch, head, first + y + i * SIDE, key + x + j * SIDE);
                now = scores[i][j] > now ? scores[i][j] : now;
            }
            now = largest_of_row(now);
            // If no key has been seen yet, all weights are zero.
            const T shift = now == HIDDEN ? (T)0 : now;
            before[i] = exp(largest[i] - shift);
            T sum = 0;
            for (int j = 0; j < EACH; j++) {
                scores[i][j] = exp(scores[i][j] - shift);
                sum += scores[i][j];
                scores[i][j] = left(p, shared, scores[i][j], y + i * SIDE, x + j * SIDE);
            }
            total[i] = total[i] * before[i] + sum_of_row(sum);
            largest[i] = now;
        }
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < VALUE_WIDTH / SIDE; j++) sums[i][j] *= before[i];
        share(shared, scores);
        accumulate<VALUE_WIDTH>(shared, sums, rows_of(p.v, batch, kv, key, columns), p.value_width);
    }
    T factors[EACH];
    for (int i = 0; i < EACH; i++) {
        factors[i] = total[i] == 0 ? (T)0 : (T)1 / total[i];
        const u64 row = y + i * SIDE;
        if (x == 0 && row < rows) ((T*)p.sums)[at * p.queries + first + row] = largest[i] + log(total[i]);
    }
    write<VALUE_WIDTH>(sums, factors, rows_of(p.out, batch, head, first, rows), p.value_width);
#endif

#ifdef EXACT_INNER
    // These are sums of products of weights and their gradients. The means were rounded, and small gradients are
    // differences with these sums.
    const Rows grad = rows_of(p.grad, batch, head, first, rows);
    T inner[EACH] = {}, shift[EACH];
    for (int i = 0; i < EACH; i++)
        shift[i] = ((const T*)p.sums)[at * p.queries + first + least(y + i * SIDE, rows - 1)];
    for (u64 key = 0; key < end; key += BLOCK) {
        const u64 columns = least(BLOCK, p.keys - key);
        T weights[EACH][EACH], to_weights[EACH][EACH];
        score(shared, weights, q, rows_of(p.k, batch, kv, key, columns), p.width);
        score(shared, to_weights, grad, rows_of(p.v, batch, kv, key, columns), p.value_width);
        draw(p, shared, at * p.queries + first, key);
        for (int i = 0; i < EACH; i++) {
            T sum = 0;
            for (int j = 0; j < EACH; j++) {
                const T score = shown(p, weights[i][j], batch, head, first + y + i * SIDE, key + x + j * SIDE);
                const T to_weight = left(p, shared, to_weights[i][j], y + i * SIDE, x + j * SIDE);
                if (score != HIDDEN) sum += exp(score - shift[i]) * to_weight;
            }
            inner[i] += sum_of_row(sum);
        }
    }
    for (int i = 0; i < EACH; i++) {
        const u64 row = y + i * SIDE;
        if (x == 0 && row < rows) ((T*)p.inner)[at * p.queries + first + row] = inner[i];
    }
#endif

#ifdef TO_QUERIES
    const Rows grad = rows_of(p.grad, batch, head, first, rows);
    T sums[EACH][WIDTH / SIDE] = {}, shift[EACH], inner[EACH], factors[EACH];
    for (int i = 0; i < EACH; i++) {
        const u64 row = least(y + i * SIDE, rows - 1);
        shift[i] = ((const T*)p.sums)[at * p.queries + first + row];
        inner[i] = ((const T*)p.inner)[at * p.queries + first + row];
        factors[i] = number<T>(p.scale);
    }
    for (u64 key = 0; key < end; key += BLOCK) {
        const u64 columns = least(BLOCK, p.keys - key);
        const Rows k = rows_of(p.k, batch, kv, key, columns);
        T weights[EACH][EACH], to_weights[EACH][EACH];
        score(shared, weights, q, k, p.width);
        score(shared, to_weights, grad, rows_of(p.v, batch, kv, key, columns), p.value_width);
        draw(p, shared, at * p.queries + first, key);
        for (int i = 0; i < EACH; i++)
            for (int j = 0; j < EACH; j++) {
                const T score = shown(p, weights[i][j], batch, head, first + y + i * SIDE, key + x + j * SIDE);
                const T weight = score == HIDDEN ? (T)0 : exp(score - shift[i]);
                const T to_weight = left(p, shared, to_weights[i][j], y + i * SIDE, x + j * SIDE);
                weights[i][j] = weight == 0 ? (T)0 : weight * (to_weight - inner[i]);
            }
        share(shared, weights);
        accumulate<WIDTH>(shared, sums, k, p.width);
    }
    write<WIDTH>(sums, factors, rows_of(p.to_q, batch, head, first, rows), p.width);
#endif

#ifdef TO_KEYS
    const u64 blocks = (p.keys + BLOCK - 1) / BLOCK, kv_heads = p.heads / p.group;
    const u64 at = blockIdx.x / blocks, first = blockIdx.x % blocks * BLOCK;
    const u64 batch = at / kv_heads, kv = at % kv_heads, rows = least(BLOCK, p.keys - first);
    const Rows k = rows_of(p.k, batch, kv, first, rows), v = rows_of(p.v, batch, kv, first, rows);
    T to_k[EACH][WIDTH / SIDE] = {}, to_v[EACH][VALUE_WIDTH / SIDE] = {}, one[EACH], factors[EACH];
    for (int i = 0; i < EACH; i++) {
        one[i] = 1;
        factors[i] = number<T>(p.scale);
    }
    for (u64 head = kv * p.group; head < (kv + 1) * p.group; head++) {
        const u64 row_of_sums = (batch * p.heads + head) * p.queries;
        for (u64 query = p.is_causal ? first : 0; query < p.queries; query += BLOCK) {
            const u64 columns = least(BLOCK, p.queries - query);
            const Rows q = rows_of(p.q, batch, head, query, columns);
            const Rows grad = rows_of(p.grad, batch, head, query, columns);
            T weights[EACH][EACH], to_weights[EACH][EACH];
            score(shared, weights, k, q, p.width);
            score(shared, to_weights, v, grad, p.value_width);
            draw(p, shared, row_of_sums + query, first);
            for (int j = 0; j < EACH; j++) {
                const u64 place = row_of_sums + query + least(x + j * SIDE, columns - 1);
                const T shift = ((const T*)p.sums)[place], inner = ((const T*)p.inner)[place];
                for (int i = 0; i < EACH; i++) {
                    const T score = shown(p, weights[i][j], batch, head, query + x + j * SIDE, first + y + i * SIDE);
                    const T weight = score == HIDDEN ? (T)0 : exp(score - shift);
                    const T to_weight = left(p, shared, to_weights[i][j], x + j * SIDE, y + i * SIDE);
                    weights[i][j] = left(p, shared, weight, x + j * SIDE, y + i * SIDE);
                    to_weights[i][j] = weight == 0 ? (T)0 : weight * (to_weight - inner);
                }
            }
            share(shared, weights);
            accumulate<VALUE_WIDTH>(shared, to_v, grad, p.value_width);
            share(shared, to_weights);
            accumulate<WIDTH>(shared, to_k, q, p.width);
        }
    }
    write<WIDTH>(to_k, factors, rows_of(p.to_k, batch, kv, first, rows), p.width);
    write<VALUE_WIDTH>(to_v, one, rows_of(p.to_v, batch, kv, first, rows), p.value_width);
#endif
}
