// Many tensors of one dtype in one launch: each block has a chunk of one of them. The host has defined `T`, what is in memory;
// `C`, what is computed in; `ARRAYS`, the arrays of each tensor; and `MOST`, the tensors of a launch.

#define THREADS 256
#define V ((int)(16 / sizeof(T)))

struct Tensor {
    // Arrays of as many elements.
    u64 arrays[ARRAYS];
    u64 n;
    // The first block that has a chunk of it.
    u64 first;
};

struct Tensors {
    u64 count;
    // Elements of a block, a multiple of `V`.
    u64 chunk;
    Tensor of[MOST];
};

// The tensor that the block has a chunk of: the last that begins before it.
DEVICE u32 tensor_of_block(const Tensors& tensors) {
    u32 low = 0, high = (u32)tensors.count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (tensors.of[middle].first <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}

// Calls `each(from)` for the vectors of a chunk from element `begin` to before `end`, and `single(from)` for elements that
// are in none.
template <typename Each, typename Single>
DEVICE void for_each(const Tensor& tensor, u64 begin, u64 end, Each each, Single single) {
    u64 places = 0;
    for (int a = 0; a < ARRAYS; a++) places |= tensor.arrays[a];
    const u64 vectors = places % 16 == 0 ? (end - begin) / V : 0;
#pragma unroll 2
    for (u64 at = threadIdx.x; at < vectors; at += THREADS) each(begin + at * V);
    for (u64 at = begin + vectors * V + threadIdx.x; at < end; at += THREADS) single(at);
}
