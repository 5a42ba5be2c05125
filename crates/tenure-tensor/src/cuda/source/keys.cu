// Maps elements to unsigned keys in the same order; NaN is the largest, and both zeros are one key. The host has
// defined `Key`, and `DESCENDING`: if it is set, the largest element comes first, so all is reversed.

template <typename Bits> DEVICE Key in_order(Bits bits, bool is_nan, bool is_zero) {
    const Bits sign = (Bits)1 << (sizeof(Bits) * 8 - 1);
    if (is_nan) return (Bits)~(Bits)0;
    return is_zero ? sign : bits & sign ? (Bits)~bits : (Bits)(bits | sign);
}

DEVICE Key plain_key(bool x) { return x; }
DEVICE Key plain_key(u8 x) { return x; }
DEVICE Key plain_key(u16 x) { return x; }
DEVICE Key plain_key(u32 x) { return x; }
DEVICE Key plain_key(u64 x) { return x; }
DEVICE Key plain_key(i8 x) { return (u8)(x ^ 0x80); }
DEVICE Key plain_key(i16 x) { return (u16)(x ^ 0x8000); }
DEVICE Key plain_key(i32 x) { return (u32)x ^ 0x80000000u; }
DEVICE Key plain_key(i64 x) { return (u64)x ^ 1ull << 63; }
DEVICE Key plain_key(f16 x) { return in_order(x.bits, widen(x) != widen(x), widen(x) == 0); }
DEVICE Key plain_key(bf16 x) { return in_order(x.bits, widen(x) != widen(x), widen(x) == 0); }
DEVICE Key plain_key(float x) { return in_order(__float_as_uint(x), x != x, x == 0); }
DEVICE Key plain_key(double x) { return in_order((u64)__double_as_longlong(x), x != x, x == 0); }

template <typename T> DEVICE Key key_of(T x) { return DESCENDING ? ~plain_key(x) : plain_key(x); }
