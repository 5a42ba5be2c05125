// Adds elements by index. Each place is summed by the thread of its first addition, in the order of the index. The host
// has put sums.cu before this.

enum Operand { INDEX, TARGET, VALUES, NUMBER };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
    // The number of additions to a line, and the distance between them.
    u64 length;
    u64 value_step;
    u64 index_step;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    Index at[OPERANDS];
    if (!p.space.find(at)) return;
    const u64 number = at[NUMBER];
    const u64 own = p.operands[INDEX] + at[INDEX], line = own - number * p.index_step;
    const i64 index = *(const i64*)own;
    if (!p.places.has(index)) return;
    for (u64 other = 0; other < number; other++)
        if (*(const i64*)(line + other * p.index_step) == index) return;
    const u64 to = p.operands[TARGET] + at[TARGET] + p.places.find(index);
    const u64 from = p.operands[VALUES] + at[VALUES];
    Sums sums;
    sums.load(to);
    sums.add(from);
    for (u64 other = number + 1; other < p.length; other++)
        if (*(const i64*)(line + other * p.index_step) == index) sums.add(from + (other - number) * p.value_step);
    sums.store(to);
}
