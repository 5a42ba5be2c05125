// Products of matrices of any strides, tile by tile. The host has defined `Stored`, the type in memory, and `T`, the
// type to compute in.

#define THREADS 256
#define TILE 64
#define DEPTH 16
#define SIDE 16
#define EACH (TILE / SIDE)

// A matrix in a batch; strides are in elements.
struct Matrix {
    u64 data;
    u64 batch;
    u64 row;
    u64 column;
};

struct Params {
    u64 m;
    u64 n;
    u64 k;
    u64 batch;
    Matrix out;
    Matrix a;
    Matrix b;
    Matrix base;
    u64 alpha;
    u64 beta;
};

DEVICE Stored* at(const Matrix& x, u64 batch, u64 row, u64 column) {
    return (Stored*)x.data + batch * x.batch + row * x.row + column * x.column;
}

// Integers wrap.
DEVICE i64 multiply_add(i64 a, i64 b, i64 c) { return (i64)((u64)a * (u64)b + (u64)c); }
DEVICE float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
DEVICE double multiply_add(double a, double b, double c) { return fma(a, b, c); }

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    __shared__ T left[DEPTH][TILE + 1];
    __shared__ T right[DEPTH][TILE + 1];
    const u64 across = (p.n + TILE - 1) / TILE, down = (p.m + TILE - 1) / TILE;
    const int x = threadIdx.x % SIDE, y = threadIdx.x / SIDE;
    for (u64 part = blockIdx.x; part < across * down * p.batch; part += gridDim.x) {
        const u64 batch = part / (across * down), row = part / across % down * TILE, column = part % across * TILE;
        T sum[EACH][EACH] = {};
        for (u64 depth = 0; depth < p.k; depth += DEPTH) {
            // Neighbouring threads read along the dense dimension, whichever it is.
            for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
                const int inner = p.a.column == 1 ? i % DEPTH : i / TILE, outer = p.a.column == 1 ? i / DEPTH : i % TILE;
                const bool is_there = row + outer < p.m && depth + inner < p.k;
                left[inner][outer] = is_there ? cast<T>(*at(p.a, batch, row + outer, depth + inner)) : (T)0;
            }
            for (int i = threadIdx.x; i < TILE * DEPTH; i += THREADS) {
                const int inner = p.b.row == 1 ? i % DEPTH : i / TILE, outer = p.b.row == 1 ? i / DEPTH : i % TILE;
                const bool is_there = column + outer < p.n && depth + inner < p.k;
                right[inner][outer] = is_there ? cast<T>(*at(p.b, batch, depth + inner, column + outer)) : (T)0;
            }
            __syncthreads();
#pragma unroll
            for (int inner = 0; inner < DEPTH; inner++) {
                T a[EACH], b[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    a[i] = left[inner][y + i * SIDE];
                    b[i] = right[inner][x + i * SIDE];
                }
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < EACH; j++) sum[i][j] = multiply_add(a[i], b[j], sum[i][j]);
            }
            __syncthreads();
        }
        const T alpha = number<T>(p.alpha), beta = number<T>(p.beta);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
#pragma unroll
            for (int j = 0; j < EACH; j++) {
                const u64 r = row + y + i * SIDE, c = column + x + j * SIDE;
                if (r >= p.m || c >= p.n) continue;
                T base = (T)0;
                if (p.base.data) base = multiply_add(beta, cast<T>(*at(p.base, batch, r, c)), base);
                *at(p.out, batch, r, c) = cast<Stored>(multiply_add(alpha, sum[i][j], base));
            }
        }
    }
}
