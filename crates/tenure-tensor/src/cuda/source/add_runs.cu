// Adds rows by position, from sorted positions. The first thread of a run of equal positions adds the run's rows. A run
// of more than `LONG` rows is left to a block, whose parts each take every `PARTS`-th row. The host has put sums.cu
// before this, and has defined `Key`, `Number`, `LANES`, and the name of the step.

enum Operand { RUN, TARGET, VALUES };

struct Params {
    Space space;
    Places places;
    u64 target;
    u64 values;
    // The sorted positions, and the row of each.
    u64 keys;
    u64 numbers;
    // The positions in their given order, or 0.
    u64 positions;
    u64 length;
    u64 value_step;
    // The number of units in a row.
    u64 units;
};

DEVICE bool is_first(const Params& p, u64 slot) {
    const Key* keys = (const Key*)p.keys;
    return slot == 0 || keys[slot - 1] != keys[slot];
}

// Returns whether the run that begins here is left to a block.
DEVICE bool is_long(const Params& p, u64 slot) {
    const Key* keys = (const Key*)p.keys;
    return slot + LONG < p.length && keys[slot + LONG] == keys[slot];
}

#if defined(ADD_RUNS)
extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    Index at[OPERANDS];
    if (!p.space.find(at)) return;
    const Key* keys = (const Key*)p.keys;
    const Number* numbers = (const Number*)p.numbers;
    const u64 slot = at[RUN];
    const Key key = keys[slot];
    if (!is_first(p, slot)) return;
    if (key >= p.places.count) {
        if (p.positions != 0) p.places.has(((const i64*)p.positions)[numbers[slot]]);
        return;
    }
    if (is_long(p, slot)) return;
    const u64 to = p.target + at[TARGET] + p.places.find(key), from = p.values + at[VALUES];
    Sums sums;
    sums.load(to);
#pragma unroll 4
    for (u64 other = slot; other < p.length && keys[other] == key; other++)
        sums.add(from + numbers[other] * p.value_step);
    sums.store(to);
}

#else
#define PARTS (256 / LANES)

// Returns the slot after the last of the run that begins at `first`.
DEVICE u64 end_of(const Params& p, u64 first) {
    const Key* keys = (const Key*)p.keys;
    const Key key = keys[first];
    u64 step = LONG;
    while (first + step < p.length && keys[first + step] == key) step *= 2;
    // `within` is in the run, `past` is not.
    u64 within = first + step / 2, past = min(first + step, p.length);
    while (within + 1 < past) {
        const u64 middle = (within + past) / 2;
        if (keys[middle] == key) within = middle;
        else past = middle;
    }
    return past;
}

// Each block adds the long run that begins among its `LONG` positions: there is at most one.
extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    __shared__ Sums parts[PARTS][LANES];
    const u64 chunks = (p.units + LANES - 1) / LANES;
    const u64 group = blockIdx.x / chunks * LONG, slot = group + threadIdx.x % LONG;
    const bool is_it = slot < p.length && is_first(p, slot) && is_long(p, slot) &&
                       ((const Key*)p.keys)[slot] < p.places.count;
    const u32 found = __ballot_sync(~0u, is_it);
    if (found == 0) return;
    const u64 first = group + __ffs(found) - 1, end = end_of(p, first);
    const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
    const u64 unit = blockIdx.x % chunks * LANES + lane;
    Index at[OPERANDS];
    p.space.find(unit < p.units ? unit : 0, at);
    const Number* numbers = (const Number*)p.numbers;
    Sums sums = {};
    if (unit < p.units) {
#pragma unroll 4
        for (u64 other = first + part; other < end; other += PARTS)
            sums.add(p.values + at[VALUES] + numbers[other] * p.value_step);
    }
    parts[part][lane] = sums;
    __syncthreads();
    if (part != 0 || unit >= p.units) return;
    const u64 to = p.target + at[TARGET] + p.places.find(((const Key*)p.keys)[first]);
    sums.load(to);
    for (int other = 0; other < PARTS; other++) sums.add(parts[other][lane]);
    sums.store(to);
}
#endif
