// An elementwise kernel. The host has defined `V`, the number of elements of a thread; `DIMS`; `Index`; and `T`, the
// type to compute in.

#define THREADS 256

// DENSE: elements are contiguous along the first dimension. ONE: there is one element along it. HOST: the host gave a
// number.
enum Kind { DENSE, ONE, HOST };

struct Operand {
    u64 data;
    u64 strides[DIMS];
};

template <Kind KIND, typename Stored, typename Lane>
DEVICE void load(const Operand& operand, Index offset, int count, Lane (&x)[V]) {
    const Stored* from = (const Stored*)(operand.data + offset);
    if (KIND == HOST) {
        const Lane value = number<Lane>(operand.data);
        for (int i = 0; i < V; i++) x[i] = value;
    } else if (KIND == ONE) {
        const Lane value = cast<Lane>(*from);
        for (int i = 0; i < V; i++) x[i] = value;
    } else if (count == V) {
        const Pack<Stored, V> pack = *(const Pack<Stored, V>*)from;
        for (int i = 0; i < V; i++) x[i] = cast<Lane>(pack.of[i]);
    } else {
        for (int i = 0; i < V; i++)
            if (i < count) x[i] = cast<Lane>(from[i]);
    }
}

template <typename Stored, typename Lane>
DEVICE void store(const Operand& operand, Index offset, int count, const Lane (&x)[V]) {
    Stored* to = (Stored*)(operand.data + offset);
    if (count == V) {
        Pack<Stored, V> pack;
        for (int i = 0; i < V; i++) pack.of[i] = cast<Stored>(x[i]);
        *(Pack<Stored, V>*)to = pack;
    } else {
        for (int i = 0; i < V; i++)
            if (i < count) to[i] = cast<Stored>(x[i]);
    }
}
