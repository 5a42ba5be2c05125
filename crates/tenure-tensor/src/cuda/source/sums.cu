// Sums of neighbours. The host has defined `T`, the type of elements; `C`, the type of sums; and `V`, their number.

struct Sums {
    C of[V];

    // Sets the sums to the elements at `from`.
    DEVICE void load(u64 from) {
        const Pack<T, V> values = *(const Pack<T, V>*)from;
#pragma unroll
        for (int i = 0; i < V; i++) of[i] = widen(values.of[i]);
    }

    DEVICE void add(const Sums& others) {
#pragma unroll
        for (int i = 0; i < V; i++) of[i] += others.of[i];
    }

    DEVICE void add(u64 from) {
        const Pack<T, V> values = *(const Pack<T, V>*)from;
#pragma unroll
        for (int i = 0; i < V; i++) of[i] += widen(values.of[i]);
    }

    DEVICE void store(u64 to) const {
        Pack<T, V> values;
#pragma unroll
        for (int i = 0; i < V; i++) values.of[i] = cast<T>(of[i]);
        *(Pack<T, V>*)to = values;
    }
};
