// Durstenfeld's shuffle, with the same result as one swap after the other. Swaps of different places run at once: each
// swap reserves its two places, the earlier swap wins a place, and a swap that has both places goes ahead. After Shun,
// Gu, Blelloch, Fineman and Gibbons, "Sequential random permutation, list contraction and tree contraction are highly
// parallel", SODA 2015.

#define SWAPS 4

struct Params {
    u64 out;
    // For each place, the round and the swap that has reserved it. Zeros at first.
    u64 owners;
    u64 count;
    State state;
};

extern "C" __global__ void __launch_bounds__(1024) kernel(const __grid_constant__ Params p) {
    i64* out = (i64*)p.out;
    const State state = begin(p.state);
    // Atomics bypass the first-level cache, so reads must too.
    volatile u64* owners = (volatile u64*)p.owners;
    for (u64 place = threadIdx.x; place < p.count; place += blockDim.x) {
        out[place] = place;
        owners[place] = 0;
    }
    __syncthreads();
    u64 round = 0;
    // Each place, from the last on, gets an element from before it or its own.
    for (u64 done = 0; done + 1 < p.count; done += SWAPS * blockDim.x) {
        u64 place[SWAPS], other[SWAPS];
        for (int i = 0; i < SWAPS; i++) {
            const u64 number = done + i * blockDim.x + threadIdx.x;
            // The first place has no swap, and there are none before it.
            place[i] = number + 1 < p.count ? p.count - 1 - number : 0;
            u32 w[4];
            philox(state, place[i] / 2, w);
            other[i] = __umul64hi(place[i] % 2 ? pair(w, 1) : pair(w, 0), place[i] + 1);
        }
        bool is_left = true;
        while (__syncthreads_or(is_left)) {
            round++;
            for (int i = 0; i < SWAPS; i++) {
                if (place[i] == 0) continue;
                atomicMax((u64*)&owners[place[i]], round << 40 | place[i]);
                atomicMax((u64*)&owners[other[i]], round << 40 | place[i]);
            }
            __syncthreads();
            is_left = false;
            for (int i = 0; i < SWAPS; i++) {
                if (place[i] == 0) continue;
                const u64 mine = round << 40 | place[i];
                if (owners[place[i]] == mine && owners[other[i]] == mine) {
                    const i64 value = out[place[i]];
                    out[place[i]] = out[other[i]];
                    out[other[i]] = value;
                    place[i] = 0;
                } else {
                    is_left = true;
                }
            }
        }
    }
}
