// Concatenates rows of several tensors to rows of one. The host has defined `MOST`, the largest number of tensors;
// `Unit`, the type to move at once; and `Index`.

struct Part {
    u64 first;
    // Where the part begins in a row, and its length there, in units.
    u64 start, length;
};

struct Params {
    u64 out;
    // The number of units in all, and in a row.
    u64 count, row;
    u64 parts;
    Part part[MOST];
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= p.count) return;
    const Index row = (Index)thread / (Index)p.row, at = (Index)thread - row * (Index)p.row;
    u32 part = 0;
    while (part + 1 < (u32)p.parts && at >= (Index)p.part[part + 1].start) part++;
    const Part& from = p.part[part];
    ((Unit*)p.out)[thread] = ((const Unit*)from.first)[row * (Index)from.length + at - (Index)from.start];
}
