// Several layouts gone through together: see space.rs. The host has defined `DIMS`, `OPERANDS` and `Index`.

struct Space {
    u64 count;
    u64 sizes[DIMS];
    u64 strides[OPERANDS][DIMS];

    // The number of this thread; none from `count` on.
    DEVICE u64 thread() const { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

    // Where it is in each operand.
    DEVICE void find(u64 thread, Index (&offsets)[OPERANDS]) const {
        Index at = (Index)thread;
#pragma unroll
        for (int operand = 0; operand < OPERANDS; operand++) offsets[operand] = 0;
#pragma unroll
        for (int dim = 0; dim < DIMS; dim++) {
            const Index rest = dim + 1 < DIMS ? at / (Index)sizes[dim] : 0, i = at - rest * (Index)sizes[dim];
#pragma unroll
            for (int operand = 0; operand < OPERANDS; operand++) offsets[operand] += i * (Index)strides[operand][dim];
            at = rest;
        }
    }
};
