// Iteration over several layouts together: see iteration_space.rs. The host has defined `DIMS`, `OPERANDS` and `Index`.

struct Space {
    u64 count;
    u64 sizes[DIMS];
    u64 strides[OPERANDS][DIMS];

    // Finds this thread's place in each operand. Returns whether there is one: there may be more threads than places.
    DEVICE bool find(Index (&offsets)[OPERANDS]) const {
        const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
        if (thread >= count) return false;
        find(thread, offsets);
        return true;
    }

    // Finds the place of that number in each operand.
    DEVICE void find(u64 number, Index (&offsets)[OPERANDS]) const {
        Index at = (Index)number;
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
