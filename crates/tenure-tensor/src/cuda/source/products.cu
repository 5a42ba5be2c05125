// Products of blocks of rows, through shared memory, for attention.cu, which lists the host's definitions.

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define EACH (BLOCK / SIDE)
// The number of columns that are in shared memory at a time.
#define CHUNK 32
#define EACH_OF_CHUNK (CHUNK / SIDE)
// The number of threads that draw for a query, and of keys that each draws for.
#define DRAWERS (THREADS / BLOCK)
#define DRAWN (BLOCK / DRAWERS)

// The gap between rows, so that threads that read one column together read from different banks.
#define GAP 1

struct alignas(16) Shared {
    T a[BLOCK][CHUNK + GAP];
    T b[BLOCK][CHUNK + GAP];
    T weights[BLOCK][BLOCK + GAP];
#if DROPS
    // Which weights are kept: a row for each query, a bit for each key, whether the block holds queries or keys.
    u32 kept[BLOCK][DRAWERS];
#endif
};

// Loads columns of rows, padded with zeros.
DEVICE void load(T (&to)[BLOCK][CHUNK + GAP], Rows from, u64 columns, u64 first) {
    for (int i = threadIdx.x; i < BLOCK * CHUNK; i += THREADS) {
        const int row = i / CHUNK, column = i % CHUNK;
        const bool is_there = row < from.count && first + column < columns;
        to[row][column] = is_there ? cast<T>(from.data[row * from.stride + first + column]) : (T)0;
    }
}

// Multiplies rows with rows: a thread has the products of every SIDE-th row of both.
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

// Writes weights to shared memory for `accumulate`, a row for each row of `sums`.
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
            const u64 row = threadIdx.x / SIDE + i * SIDE, column = threadIdx.x % SIDE + j * SIDE;
            if (row < to.count && column < columns)
                to.data[row * to.stride + column] = cast<Stored>(sums[i][j] * factors[i]);
        }
}
