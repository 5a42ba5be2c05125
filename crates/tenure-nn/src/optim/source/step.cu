// A step of an optimizer. The host puts tensors.cu before this file, and defines `SLOTS`, the number of slots of a
// parameter; `NUMBERS`; and `element`, which updates `value` and `s0`, `s1`, ... by `grad`, the numbers and a `factor`.

struct Params {
    // The numbers of the rule in this step.
    u64 numbers[NUMBERS];
    // The address of `factor`, a double on the device, or 0.
    u64 factor;
    // In a captured step, the address of the numbers that replace those above; otherwise 0.
    u64 words;
    // The arrays of each tensor are the parameter, its slots, and its gradient.
    Tensors tensors;
};

template <int N> DEVICE void step(const Tensor& tensor, u64 at, const C (&numbers)[NUMBERS], C factor) {
    Pack<T, N> packs[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) packs[a] = *(const Pack<T, N>*)((const T*)tensor.arrays[a] + at);
    for (int i = 0; i < N; i++) {
        C x[1 + SLOTS];
        for (int a = 0; a <= SLOTS; a++) x[a] = cast<C>(packs[a].of[i]);
        element(numbers, factor, x, cast<C>(packs[SLOTS + 1].of[i]));
        for (int a = 0; a <= SLOTS; a++) packs[a].of[i] = cast<T>(x[a]);
    }
    for (int a = 0; a <= SLOTS; a++) *(Pack<T, N>*)((T*)tensor.arrays[a] + at) = packs[a];
}

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const Tensor& tensor = p.tensors.of[tensor_of_block(p.tensors)];
    const u64 begin = (blockIdx.x - tensor.first) * p.tensors.chunk, rest = tensor.n - begin;
    const u64 end = begin + (rest < p.tensors.chunk ? rest : p.tensors.chunk);
    const C factor = p.factor != 0 ? (C)*(const double*)p.factor : (C)1;
    C numbers[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) numbers[i] = number<C>(p.words != 0 ? ((const u64*)p.words)[i] : p.numbers[i]);
    for_each(tensor, begin, end, [&](u64 at) { step<V>(tensor, at, numbers, factor); },
             [&](u64 at) { step<1>(tensor, at, numbers, factor); });
}
