// Sorts short rows: each element counts those that come before it. The host has defined `Element`, from which `Key` is
// made.

struct Params {
    u64 out;
    u64 input;
    u64 count;
    u64 length;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= p.count) return;
    const u64 row = thread / p.length * p.length;
    const u32 own = thread - row;
    const Element* elements = (const Element*)p.input + row;
    const Key key = key_of(elements[own]);
    u32 rank = 0;
    for (u32 other = 0; other < (u32)p.length; other++) {
        const Key others = key_of(elements[other]);
        rank += others < key || (others == key && other < own);
    }
    ((i64*)p.out)[row + rank] = own;
}
