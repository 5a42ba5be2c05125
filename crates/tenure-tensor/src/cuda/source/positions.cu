// Elements of a target by number, from an index along one dimension. The host has defined `Key`.

enum Operand { OUT, INDEX, LINE };

struct Params {
    Space space;
    u64 keys;
    u64 index;
    // How far neighbours are apart along the dimension, in elements counted the last dimension fastest.
    u64 step;
    u64 size;
    u64 dim;
    // What stands for no element.
    u64 none;
    u64 fault;
    u64 code;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = p.space.thread();
    if (thread >= p.space.count) return;
    Index at[OPERANDS];
    p.space.find(thread, at);
    const i64 index = *(const i64*)(p.index + at[INDEX]);
    const bool is_there = (u64)index < p.size;
    if (!is_there) report(p.fault, p.code, index, p.dim, p.size);
    ((Key*)p.keys)[at[OUT]] = is_there ? (Key)(at[LINE] + index * p.step) : (Key)p.none;
}
