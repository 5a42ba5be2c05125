// Reverses the order of each `length` blocks. The host has defined `Unit`, the type to move.

struct Params {
    u64 out;
    u64 input;
    u64 count;
    u64 length;
    u64 block;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.count) return;
    u64 number, inside;
    if (p.count < 1ull << 32) {
        number = (u32)at / (u32)p.block;
        inside = (u32)number % (u32)p.length;
    } else {
        number = at / p.block;
        inside = number % p.length;
    }
    const u64 from = at + (p.length - 1 - 2 * inside) * p.block;
    ((Unit*)p.out)[at] = ((const Unit*)p.input)[from];
}
