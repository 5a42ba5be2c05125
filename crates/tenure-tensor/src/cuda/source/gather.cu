// Reads elements by index. The host has defined `Unit`, the type to move.

enum Operand { OUT, SOURCE, INDEX };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    Index at[OPERANDS];
    if (!p.space.find(at)) return;
    const i64 index = *(const i64*)(p.operands[INDEX] + at[INDEX]);
    if (!p.places.has(index)) return;
    const u64 from = p.operands[SOURCE] + at[SOURCE] + p.places.find(index);
    *(Unit*)(p.operands[OUT] + at[OUT]) = *(const Unit*)from;
}
