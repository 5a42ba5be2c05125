// Sums of neighbours, gathered in what they are computed in. The host has defined `T`, what is added, `C`, what sums
// are, and `V`, how many there are.

struct Sums {
    C of[V];

    // Those that are there, which are elements.
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
