// Elements added by index, each place by the thread of what is first added there, in the order of the index. The host has
// defined `T`, what is added, `C`, what sums are gathered in, and `V`, elements of a thread.

enum Operand { INDEX, TARGET, VALUES, NUMBER };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
    // What is added to a line, and how far apart it is.
    u64 length;
    u64 value_step;
    u64 index_step;
    u64 fault;
    u64 code;
};

typedef Pack<T, V> Values;

DEVICE void add(C (&sums)[V], u64 from) {
    const Values values = *(const Values*)from;
#pragma unroll
    for (int i = 0; i < V; i++) sums[i] += widen(values.of[i]);
}

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = p.space.thread();
    if (thread >= p.space.count) return;
    Index at[OPERANDS];
    p.space.find(thread, at);
    const u64 number = at[NUMBER];
    const u64 own = p.operands[INDEX] + at[INDEX], line = own - number * p.index_step;
    const i64 index = *(const i64*)own;
    if (!p.places.has(index, p.fault, p.code)) return;
    for (u64 other = 0; other < number; other++)
        if (*(const i64*)(line + other * p.index_step) == index) return;
    Values* const to = (Values*)(p.operands[TARGET] + at[TARGET] + p.places.find(index));
    const u64 from = p.operands[VALUES] + at[VALUES];
    Values values = *to;
    C sums[V];
    for (int i = 0; i < V; i++) sums[i] = widen(values.of[i]);
    add(sums, from);
    for (u64 other = number + 1; other < p.length; other++)
        if (*(const i64*)(line + other * p.index_step) == index) add(sums, from + (other - number) * p.value_step);
    for (int i = 0; i < V; i++) values.of[i] = cast<T>(sums[i]);
    *to = values;
}
