// Reports an element that is not from 0 to 1. The host has defined `T`, the type of elements, and `V`, the number of a
// thread.

struct Params {
    u64 elements;
    u64 count;
    u64 fault;
    u64 code;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    const Pack<T, V> x = ((const Pack<T, V>*)p.elements)[at];
    for (int i = 0; i < V; i++) {
        const double value = widen(x.of[i]);
        if (!(value >= 0 && value <= 1)) report(p.fault, p.code, __double_as_longlong(value), 0, 0);
    }
}
