// Writes elements by index. The host has defined `Unit`, the type to move, and the name of the step. The last of
// several writes to one place wins: a first step registers all writes with the owners of the places, where the last one
// stays.

enum Operand { INDEX, TARGET, VALUES, LINE, NUMBER };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
    // For each place of each line, the number of its last write, counted from 1; or 0, if no place is written twice.
    u64 owners;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    Index at[OPERANDS];
    if (!p.space.find(at)) return;
    const i64 index = *(const i64*)(p.operands[INDEX] + at[INDEX]);
    if (!p.places.has(index)) return;
    Index* const owner = (Index*)p.owners + (u64)at[LINE] * p.places.count + index;
    const Index number = at[NUMBER] + 1;
#if defined(SCATTER_CLEAR)
    *owner = 0;
#elif defined(SCATTER_CLAIM)
    atomicMax(owner, number);
#else
    if (p.owners != 0 && *owner != number) return;
    const u64 to = p.operands[TARGET] + at[TARGET] + p.places.find(index);
    *(Unit*)to = *(const Unit*)(p.operands[VALUES] + at[VALUES]);
#endif
}
