// Numbers the target's elements that an index along one dimension names; the last dimension counts fastest. The host
// has defined `Key`.

enum Operand { OUT, INDEX, LINE };

struct Params {
    Space space;
    // The dimension, with numbers of elements instead of distances.
    Places places;
    u64 keys;
    u64 index;
    // The key that stands for no element.
    u64 none;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    Index at[OPERANDS];
    if (!p.space.find(at)) return;
    const i64 index = *(const i64*)(p.index + at[INDEX]);
    ((Key*)p.keys)[at[OUT]] = p.places.has(index) ? (Key)(at[LINE] + p.places.find(index)) : (Key)p.none;
}
