// Many tensors of one dtype in one launch. Each block has a chunk of one tensor. The host defines `T`, the type in
// memory; `C`, the type of the computation; `ARRAYS`, the number of arrays of each tensor; and `MOST`, the largest
// number of tensors in a launch.

#define THREADS 256
#define V ((int)(16 / sizeof(T)))

struct Tensor {
    // The addresses of the arrays, which have `n` elements each.
    u64 arrays[ARRAYS];
    u64 n;
    // The first block that has a chunk of this tensor.
    u64 first;
};

struct Tensors {
    u64 count;
    // The number of elements of a block, a multiple of `V`.
    u64 chunk;
    Tensor of[MOST];
};

// Returns the tensor that the block has a chunk of: the last one whose first block is not after it.
DEVICE u32 tensor_of_block(const Tensors& tensors) {
    u32 low = 0, high = (u32)tensors.count;
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (tensors.of[middle].first <= blockIdx.x) low = middle;
        else high = middle;
    }
    return low;
}

// Calls `each(from)` for the vectors between the elements `begin` and `end`, `end` excluded, and `single(from)` for the
// elements that are in no vector.
template <typename Each, typename Single>
DEVICE void for_each(const Tensor& tensor, u64 begin, u64 end, Each each, Single single) {
    u64 places = 0;
    for (int a = 0; a < ARRAYS; a++) places |= tensor.arrays[a];
    const u64 vectors = places % 16 == 0 ? (end - begin) / V : 0;
#pragma unroll 2
    for (u64 at = threadIdx.x; at < vectors; at += THREADS) each(begin + at * V);
    for (u64 at = begin + vectors * V + threadIdx.x; at < end; at += THREADS) single(at);
}
