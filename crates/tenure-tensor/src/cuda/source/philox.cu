// Counter-based random words, as defined in random.rs.

// The place in a seed's sequence where the numbers begin.
struct State {
    u64 seed;
    u64 offset;
    // The address of the seed and offset from which these count, or 0.
    u64 origin;
};

// Returns the state counted from its origin, if it has one.
DEVICE State begin(State state) {
    if (state.origin != 0) {
        state.seed += ((const u64*)state.origin)[0];
        state.offset += ((const u64*)state.origin)[1];
    }
    return state;
}

// Computes Philox4x32-10: the block of words `index` places further on.
DEVICE void philox(const State& state, u64 index, u32 (&w)[4]) {
    const u64 place = state.offset + index;
    u32 key[2] = {(u32)state.seed, (u32)(state.seed >> 32)};
    w[0] = (u32)place, w[1] = (u32)(place >> 32), w[2] = 0, w[3] = 0;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 first = 0xd2511f53ull * w[0], second = 0xcd9e8d57ull * w[2];
        w[0] = (u32)(second >> 32) ^ w[1] ^ key[0], w[1] = (u32)second;
        w[2] = (u32)(first >> 32) ^ w[3] ^ key[1], w[3] = (u32)first;
        key[0] += 0x9e3779b9u, key[1] += 0xbb67ae85u;
    }
}

DEVICE u64 pair(const u32 (&w)[4], int at) { return (u64)w[2 * at] | (u64)w[2 * at + 1] << 32; }
