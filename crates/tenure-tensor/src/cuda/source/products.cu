// Products of blocks of rows, through shared memory, for attention.cu, which says what the host has defined.

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define EACH (BLOCK / SIDE)
// Columns that are in shared memory at a time.
#define CHUNK 32
#define EACH_OF_CHUNK (CHUNK / SIDE)
// Threads that draw for a query, and keys that each draws for.
#define DRAWERS (THREADS / BLOCK)
#define DRAWN (BLOCK / DRAWERS)

// Some rows, of which columns are dense.
struct Rows {
    Stored* data;
    u64 stride;
    u64 count;
};

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
    // Volatile: all threads of a warp multiply together, so it stays where it is.
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
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
