// The elements of some dimensions, counted by one index. The host has defined `PLACES`, the dimensions; the last of
// them comes first.

struct Places {
    u64 count;
    u64 dim;
    // What an index that is not there is reported to.
    u64 fault;
    u64 code;
    u64 sizes[PLACES];
    u64 strides[PLACES];

    // Whether an index is there, which is said if it is not.
    DEVICE bool has(i64 index) const {
        if ((u64)index < count) return true;
        report(fault, code, index, dim, count);
        return false;
    }

    // How far in bytes an element is from that of index 0.
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
