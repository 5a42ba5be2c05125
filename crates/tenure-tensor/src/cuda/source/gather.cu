// Elements read by index. The host has defined `Unit`, what is moved.

enum Operand { OUT, SOURCE, INDEX };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
    u64 fault;
    u64 code;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = p.space.thread();
    if (thread >= p.space.count) return;
    Index at[OPERANDS];
    p.space.find(thread, at);
    const i64 index = *(const i64*)(p.operands[INDEX] + at[INDEX]);
    if (!p.places.has(index, p.fault, p.code)) return;
    const u64 from = p.operands[SOURCE] + at[SOURCE] + p.places.find(index);
    *(Unit*)(p.operands[OUT] + at[OUT]) = *(const Unit*)from;
}
