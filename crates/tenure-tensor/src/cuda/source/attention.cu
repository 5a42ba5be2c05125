// Attention without a matrix of all weights, and its gradients. FlashAttention (Dao et al., 2022): a block of queries,
// or of keys, stays, and the others pass by. The host has defined `Stored`, elements in memory; `T`, what is computed
// in; `BLOCK`, queries and keys of a block; `WIDTH` and `VALUE_WIDTH`, the widths of queries and values or more;
// `MASK`, 0 without one, 1 for bool, 2 for numbers that are added; `DROPS`, whether weights are dropped; `MATRIX`, whether
// products are by matrix units; and which of ATTEND, INNER, EXACT_INNER, TO_QUERIES and TO_KEYS.

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define EACH (BLOCK / SIDE)
// Columns that are in shared memory at a time.
#define CHUNK 32
#define EACH_OF_CHUNK (CHUNK / SIDE)
// Blocks that a multiprocessor has at once, where their sums are few enough for its registers.
#define TOGETHER (BLOCK == 64 && WIDTH <= 64 && VALUE_WIDTH <= 64 ? 2 : 1)
// Threads that draw for a query, and keys that each draws for.
#define DRAWERS (THREADS / BLOCK)
#define DRAWN (BLOCK / DRAWERS)

// (batch, heads, rows, columns) of which columns are dense, strides in elements.
struct Heads {
    u64 data;
    u64 batch;
    u64 head;
    u64 row;
};

struct Params {
    u64 batch;
    u64 heads;
    // Heads of queries that share keys.
    u64 group;
    u64 queries;
    u64 keys;
    u64 width;
    u64 value_width;
    u64 scale;
    u64 is_causal;
    Heads q;
    Heads k;
    Heads v;
    Heads out;
    // Logarithms of the sums of weights, (batch, heads, queries).
    u64 sums;
    u64 mask;
    u64 mask_strides[4];
    Heads grad;
    // Of each query, the sum of products of its mean and that's gradient.
    u64 inner;
    Heads to_q;
    Heads to_k;
    Heads to_v;
    // Where the numbers begin of which each weight, (batch, heads, queries, keys), has one.
    State state;
    // Weights are kept whose word is below it, and multiplied.
    u64 limit;
    u64 kept_scale;
};

#define HIDDEN (-INFINITE(T))

// Whether a block has queries, and keys pass by.
#if defined(ATTEND) || defined(EXACT_INNER) || defined(TO_QUERIES)
#define OF_QUERIES
#endif

// Some rows of a head.
struct Rows {
    Stored* data;
    u64 stride;
    u64 count;
};

DEVICE Rows rows_of(const Heads& x, u64 batch, u64 head, u64 first, u64 count) {
    return {(Stored*)x.data + batch * x.batch + head * x.head + first * x.row, x.row, count};
}

// Between rows, so that those who read together read from different banks: a column of a warp, or what a warp multiplies.
#define GAP (MATRIX ? 4 : 1)

struct alignas(16) Shared {
    T a[BLOCK][CHUNK + GAP];
    T b[BLOCK][CHUNK + GAP];
    T weights[BLOCK][BLOCK + GAP];
#if MATRIX
    T rows[BLOCK];
#endif
#if DROPS
    // Which weights are kept: a bit for each key, a row for each query, whichever of the two stay.
    u32 kept[BLOCK][DRAWERS];
#endif
};

// Columns of rows, with zeros where there are none.
DEVICE void load(T (&to)[BLOCK][CHUNK + GAP], Rows from, u64 columns, u64 first) {
#if MATRIX
    // Halves that a thread reads at once: all of them are one for each thread.
    constexpr int WIDE = BLOCK * CHUNK / THREADS;
    if (((u64)from.data | from.stride * sizeof(Stored) | columns * sizeof(Stored)) % (WIDE * sizeof(Stored)) == 0) {
        const int row = threadIdx.x / (CHUNK / WIDE), column = threadIdx.x % (CHUNK / WIDE) * WIDE;
        Pack<Stored, WIDE> x = {};
        if (row < from.count && first + column < columns)
            x = *(const Pack<Stored, WIDE>*)(from.data + row * from.stride + first + column);
        for (int i = 0; i < WIDE; i += 4)
            *(Pack<T, 4>*)&to[row][column + i] = {cast<T>(x.of[i]), cast<T>(x.of[i + 1]), cast<T>(x.of[i + 2]),
                                                  cast<T>(x.of[i + 3])};
        return;
    }
#endif
    for (int i = threadIdx.x; i < BLOCK * CHUNK; i += THREADS) {
        const int row = i / CHUNK, column = i % CHUNK;
        const bool is_there = row < from.count && first + column < columns;
        to[row][column] = is_there ? cast<T>(from.data[row * from.stride + first + column]) : (T)0;
    }
}

#if MATRIX
// Halves have no more digits than TF32, so products of two are exact; a weight, which has more, is multiplied as the sum of
// two such numbers. A warp multiplies matrices of 16 rows, of which a thread has two.
#define WARP_ROW (threadIdx.x / 64 * 16 + threadIdx.x % 32 / 4)
// Of the columns of a block, or of a chunk, a warp has one half.
#define WARP_HALF (threadIdx.x / 32 % 2)
#define LANE (threadIdx.x % 4)

// Adds the product of 16 x 8 numbers with 8 x 8, of which a thread has four and two, to 16 x 8, of which it has four.
DEVICE void multiply(float (&sums)[4], const float (&a)[4], const float (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// The digits that TF32 has.
DEVICE float leading(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

// Four numbers of a thread, of 16 rows and 8 columns.
template <int SIZE> DEVICE void part(float (&of_a)[4], const float (&a)[BLOCK][SIZE], int column) {
    for (int i = 0; i < 4; i++) of_a[i] = a[WARP_ROW + i % 2 * 8][column + LANE + i / 2 * 4];
}

// Products of rows with rows: a thread has those of every SIDE-th of both.
DEVICE void score(Shared& shared, T (&scores)[EACH][EACH], Rows a, Rows b, u64 columns) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    const int from_row = WARP_HALF * (BLOCK / 2) + threadIdx.x % 32 / 4;
    T found[BLOCK / 16][4] = {};
    for (u64 first = 0; first < columns; first += CHUNK) {
        load(shared.a, a, columns, first);
        load(shared.b, b, columns, first);
        __syncthreads();
#pragma unroll
        for (int column = 0; column < CHUNK; column += 8) {
            T of_a[4];
            part(of_a, shared.a, column);
            for (int n = 0; n < BLOCK / 16; n++) {
                const T* row = shared.b[from_row + n * 8];
                const T of_b[2] = {row[column + LANE], row[column + LANE + 4]};
                multiply(found[n], of_a, of_b);
            }
        }
        __syncthreads();
    }
    for (int n = 0; n < BLOCK / 16; n++)
        for (int i = 0; i < 4; i++)
            shared.weights[WARP_ROW + i / 2 * 8][WARP_HALF * (BLOCK / 2) + n * 8 + 2 * LANE + i % 2] = found[n][i];
    __syncthreads();
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) scores[i][j] = shared.weights[y + i * SIDE][x + j * SIDE];
    __syncthreads();
}

// The row and the column of a sum of a thread.
DEVICE int row_of(int i) { return WARP_ROW + i / 2 * 8; }
DEVICE int column_of(int i, int j) {
    return j / EACH_OF_CHUNK * CHUNK + WARP_HALF * (CHUNK / 2) + i % 2 * 8 + 2 * LANE + j % EACH_OF_CHUNK;
}

// What there is for each row of scores, for each of sums.
DEVICE void exchange(Shared& shared, T (&of_rows)[EACH]) {
    for (int i = 0; i < EACH; i++)
        if (threadIdx.x % SIDE == 0) shared.rows[threadIdx.x / SIDE + i * SIDE] = of_rows[i];
    __syncthreads();
    for (int i = 0; i < EACH; i++) of_rows[i] = shared.rows[row_of(i)];
}

// Adds rows times the shared weights.
template <int SIZE>
DEVICE void accumulate(Shared& shared, T (&sums)[EACH][SIZE / SIDE], Rows from, u64 columns) {
    const int from_column = WARP_HALF * (CHUNK / 2) + threadIdx.x % 32 / 4;
#pragma unroll
    for (int first = 0; first < SIZE; first += CHUNK) {
        load(shared.b, from, columns, first);
        __syncthreads();
        const int j = first / SIDE;
#pragma unroll
        for (int row = 0; row < BLOCK; row += 8) {
            T weights[4], rest[4];
            part(weights, shared.weights, row);
            for (int i = 0; i < 4; i++) {
                const T all = weights[i];
                weights[i] = leading(all);
                // Infinity less itself is no number.
                rest[i] = all == weights[i] ? (T)0 : leading(all - weights[i]);
            }
            for (int n = 0; n < 2; n++) {
                const T values[2] = {shared.b[row + LANE][from_column + n * 8],
                                     shared.b[row + LANE + 4][from_column + n * 8]};
                T sum[4] = {sums[n][j], sums[n][j + 1], sums[n + 2][j], sums[n + 2][j + 1]};
                multiply(sum, rest, values);
                multiply(sum, weights, values);
                sums[n][j] = sum[0], sums[n][j + 1] = sum[1], sums[n + 2][j] = sum[2], sums[n + 2][j + 1] = sum[3];
            }
        }
        __syncthreads();
    }
}
#else
// Products of rows with rows: a thread has those of every SIDE-th of both.
DEVICE void score(Shared& shared, T (&scores)[EACH][EACH], Rows a, Rows b, u64 columns) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) scores[i][j] = 0;
    for (u64 first = 0; first < columns; first += CHUNK) {
        load(shared.a, a, columns, first);
        load(shared.b, b, columns, first);
        __syncthreads();
#pragma unroll 8
        for (int column = 0; column < CHUNK; column++) {
            T of_a[EACH], of_b[EACH];
            for (int i = 0; i < EACH; i++) {
                of_a[i] = shared.a[y + i * SIDE][column];
                of_b[i] = shared.b[x + i * SIDE][column];
            }
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++) scores[i][j] += of_a[i] * of_b[j];
        }
        __syncthreads();
    }
}

// The row and the column of a sum of a thread.
DEVICE int row_of(int i) { return threadIdx.x / SIDE + i * SIDE; }
DEVICE int column_of(int, int j) { return threadIdx.x % SIDE + j * SIDE; }

// What there is for each row of scores is for each of sums.
DEVICE void exchange(Shared&, T (&)[EACH]) {}

// Adds rows times the shared weights.
template <int SIZE>
DEVICE void accumulate(Shared& shared, T (&sums)[EACH][SIZE / SIDE], Rows from, u64 columns) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
#pragma unroll
    for (int first = 0; first < SIZE; first += CHUNK) {
        load(shared.b, from, columns, first);
        __syncthreads();
#pragma unroll 8
        for (int row = 0; row < BLOCK; row++) {
            T weights[EACH], values[EACH_OF_CHUNK];
            for (int i = 0; i < EACH; i++) weights[i] = shared.weights[y + i * SIDE][row];
            for (int j = 0; j < EACH_OF_CHUNK; j++) values[j] = shared.b[row][x + j * SIDE];
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH_OF_CHUNK; j++) sums[i][first / SIDE + j] += weights[i] * values[j];
        }
        __syncthreads();
    }
}
#endif

// Writes weights, a row for each row of `sums`, for `accumulate`.
DEVICE void share(Shared& shared, const T (&weights)[EACH][EACH]) {
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) shared.weights[y + i * SIDE][x + j * SIDE] = weights[i][j];
    __syncthreads();
}

template <int SIZE>
DEVICE void write(const T (&sums)[EACH][SIZE / SIDE], T (&factors)[EACH], Rows to, u64 columns) {
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < SIZE / SIDE; j++) {
            const u64 row = row_of(i), column = column_of(i, j);
            if (row < to.count && column < columns)
                to.data[row * to.stride + column] = cast<Stored>(sums[i][j] * factors[i]);
        }
}

// A score, scaled and masked.
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

// Draws which weights of a block are kept, the first of them of the query `row`, counted over all heads, and of a key.
// After products: all threads have passed what they did with the block before.
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

// A weight, or its gradient, without what is dropped.
DEVICE T left(const Params& p, const Shared& shared, T x, int query, int key) {
#if DROPS
    const bool is_kept = shared.kept[query][key / DRAWN] >> key % DRAWN & 1;
    return is_kept ? x * number<T>(p.kept_scale) : (T)0;
#else
    return x;
#endif
}

DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

// Over the threads that have columns of the same rows.
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
    // A half of a warp has a query.
    const u64 row = ((u64)blockIdx.x * THREADS + threadIdx.x) / SIDE, at = row / p.queries;
    // The others take part in the sums all the same.
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
    // The longest first, where later queries see more keys.
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
            // Where nothing is seen yet, all weights are zero.
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
        exchange(shared, before);
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
    exchange(shared, factors);
    write<VALUE_WIDTH>(sums, factors, rows_of(p.out, batch, head, first, rows), p.value_width);
#endif

#ifdef EXACT_INNER
    // Of weights and their gradients, where the means were rounded: small gradients are differences with these sums.
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
