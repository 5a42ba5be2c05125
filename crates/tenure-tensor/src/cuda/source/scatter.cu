// Elements written by index. The host has defined `Unit`, what is moved, and what is done. Of what is written to one
// place, the last stays: first all that is to be written says so to the owners of the places, and the last one wins.

enum Operand { INDEX, TARGET, VALUES, LINE, NUMBER };

struct Params {
    Space space;
    Places places;
    u64 operands[3];
    // Of each place of each line, the number of what is written there, counted from 1; or no memory, where nothing is
    // written twice.
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
