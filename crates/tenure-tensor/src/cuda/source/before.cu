// Returns the sum over the threads before this one, and in `all` the sum over the whole block of `COUNT` threads.
template <int COUNT> DEVICE u64 before(u64 own, u64* all) {
    __shared__ u64 warps[COUNT / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = own;
    for (int apart = 1; apart < 32; apart *= 2) {
        const u64 other = __shfl_up_sync(~0u, sum, apart);
        if (lane >= apart) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    u64 start = 0, total = 0;
    for (int i = 0; i < COUNT / 32; i++) {
        if (i < warp) start += warps[i];
        total += warps[i];
    }
    __syncthreads();
    *all = total;
    return start + sum - own;
}
