// Copies of what is dense along one dimension to what is dense along another: tiles go through shared memory, so that
// neighbours are read and written together. The host has defined `To` and `From`, what elements are, `SIDE`, those along
// each side of a tile, and `PAD`, elements of a word.

#define THREADS 256
#define LINES (THREADS / 32)

enum Operand { OUT, INPUT };

struct Params {
    // All dimensions but the two.
    Space space;
    u64 out;
    u64 input;
    // The input is dense along rows' numbers, the output along columns'.
    u64 rows;
    u64 columns;
    // From row to row in the output, and from column to column in the input, in bytes.
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
