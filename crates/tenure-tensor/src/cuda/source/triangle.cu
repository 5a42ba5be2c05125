// Matrices with zeros on one side of a diagonal. The host has defined `Unit`, an element's bits, and `V`, the number of
// elements of a thread, all of one row.

struct Params {
    u64 out;
    u64 input;
    u64 count;
    u64 rows;
    // The number of columns in vectors.
    u64 columns;
    i64 diagonal;
    u64 is_lower;
};

typedef Pack<Unit, V> Units;

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    i64 row, column;
    if (p.count < 1ull << 32) {
        row = (u32)at / (u32)p.columns % (u32)p.rows;
        column = (u32)at % (u32)p.columns;
    } else {
        row = at / p.columns % p.rows;
        column = at % p.columns;
    }
    // The distance from the first column of this thread to the diagonal.
    const i64 edge = row + p.diagonal - column * V;
    Units x = {};
    if (p.is_lower ? edge >= 0 : edge < V) {
        x = ((const Units*)p.input)[at];
        for (int i = 0; i < V; i++)
            if (p.is_lower ? i > edge : i < edge) x.of[i] = 0;
    }
    ((Units*)p.out)[at] = x;
}
