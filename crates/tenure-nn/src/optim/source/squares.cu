// Sums of squares, in double precision, of each block's chunk. With `TOTAL`, of each tensor's chunks.

#define WARP 32

// Adds up the sums of all threads. The first thread returns the result.
DEVICE double sum_of_block(double sum) {
    __shared__ double slots[THREADS / WARP];
    for (u32 by = WARP / 2; by > 0; by /= 2) sum += __shfl_down_sync(0xffffffffu, sum, by);
    if (threadIdx.x % WARP == 0) slots[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0;
    for (u32 warp = 0; warp < THREADS / WARP; warp++) sum += slots[warp];
    return sum;
}

struct Params {
    u64 sums, parts;
    Tensors tensors;
};

#if TOTAL
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const Tensor& tensor = p.tensors.of[blockIdx.x];
    const double* const parts = (const double*)p.parts + tensor.first;
    const u64 count = (tensor.n + p.tensors.chunk - 1) / p.tensors.chunk;
    double sum = 0;
#pragma unroll 4
    for (u64 at = threadIdx.x; at < count; at += THREADS) sum += parts[at];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) ((double*)p.sums)[blockIdx.x] = sum;
}
#else
extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const Tensor& tensor = p.tensors.of[tensor_of_block(p.tensors)];
    const u64 begin = (blockIdx.x - tensor.first) * p.tensors.chunk, rest = tensor.n - begin;
    const u64 end = begin + (rest < p.tensors.chunk ? rest : p.tensors.chunk);
    const T* const x = (const T*)tensor.arrays[0];
    double sum = 0;
    const auto add = [&](T value) { sum += (double)cast<C>(value) * (double)cast<C>(value); };
    for_each(tensor, begin, end,
             [&](u64 at) {
                 const Pack<T, V> pack = *(const Pack<T, V>*)(x + at);
                 for (int i = 0; i < V; i++) add(pack.of[i]);
             },
             [&](u64 at) { add(x[at]); });
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) ((double*)p.parts)[blockIdx.x] = sum;
}
#endif
