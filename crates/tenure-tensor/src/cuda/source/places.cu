// The places of the elements of some dimensions, counted by one index. The host has defined `PLACES`, the number of
// dimensions; the last dimension comes first.

struct Places {
    u64 count;
    u64 dim;
    // Where to report an index out of range.
    u64 fault;
    u64 code;
    u64 sizes[PLACES];
    u64 strides[PLACES];

    // Returns whether an index is in range; reports it if not.
    DEVICE bool has(i64 index) const {
        if ((u64)index < count) return true;
        report(fault, code, index, dim, count);
        return false;
    }

    // Returns the distance in bytes of an element from that of index 0.
    DEVICE Index find(i64 index) const {
        Index rest = (Index)index, offset = 0;
#pragma unroll
        for (int place = 0; place < PLACES; place++) {
            const Index outer = place + 1 < PLACES ? rest / (Index)sizes[place] : 0;
            offset += (rest - outer * (Index)sizes[place]) * (Index)strides[place];
            rest = outer;
        }
        return offset;
    }
};
