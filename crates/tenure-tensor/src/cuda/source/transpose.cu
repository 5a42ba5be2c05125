// Copies between layouts that are dense along different dimensions. Tiles go through shared memory, so that neighbours
// are read and written together. The host has defined `To` and `From`, the types of elements; `SIDE`, the number along
// each side of a tile; and `PAD`, the number of elements in a word.

#define THREADS 256
#define LINES (THREADS / 32)

enum Operand { OUT, INPUT };

struct Params {
    // All dimensions but the two.
    Space space;
    u64 out;
    u64 input;
    // The input is dense along `rows`, the output along `columns`.
    u64 rows;
    u64 columns;
    // The distances in bytes of rows in the output, and of columns in the input.
    u64 down;
    u64 right;
};

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    __shared__ To tile[SIDE][SIDE + PAD];
    const u64 across = (p.columns + SIDE - 1) / SIDE, along = (p.rows + SIDE - 1) / SIDE;
    const u64 left = blockIdx.x % across * SIDE, top = blockIdx.x / across % along * SIDE;
    Index at[OPERANDS];
    p.space.find(blockIdx.x / across / along, at);
    const u64 out = p.out + at[OUT], input = p.input + at[INPUT];
    const int lane = threadIdx.x % 32, line = threadIdx.x / 32;
#pragma unroll
    for (int j = 0; j < SIDE; j += LINES) {
        const int c = j + line;
#pragma unroll
        for (int i = 0; i < SIDE; i += 32) {
            const int r = i + lane;
            if (left + c < p.columns && top + r < p.rows)
                tile[c][r] = cast<To>(*(const From*)(input + (left + c) * p.right + (top + r) * sizeof(From)));
        }
    }
    __syncthreads();
#pragma unroll
    for (int j = 0; j < SIDE; j += LINES) {
        const int r = j + line;
#pragma unroll
        for (int i = 0; i < SIDE; i += 32) {
            const int c = i + lane;
            if (left + c < p.columns && top + r < p.rows)
                *(To*)(out + (top + r) * p.down + (left + c) * sizeof(To)) = tile[c][r];
        }
    }
}
