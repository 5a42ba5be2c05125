// The beginning of every kernel: element types and their conversions. It includes no header, so that the compiler alone
// is enough.

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// 16-bit floats are computed in `float`.
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#define DEVICE __device__ __forceinline__
#define INFINITE(T) ((T)__longlong_as_double(0x7ff0000000000000ll))

// Widen a value to the widest type of its kind that holds it.
DEVICE i32 widen(bool x) { return x; }
DEVICE i32 widen(u8 x) { return x; }
DEVICE i32 widen(i8 x) { return x; }
DEVICE i32 widen(i16 x) { return x; }
DEVICE i32 widen(i32 x) { return x; }
DEVICE i64 widen(i64 x) { return x; }
DEVICE i32 widen(u16 x) { return x; }
DEVICE i64 widen(u32 x) { return x; }
DEVICE u64 widen(u64 x) { return x; }
DEVICE float widen(float x) { return x; }
DEVICE double widen(double x) { return x; }
DEVICE float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
DEVICE float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

// Cut off to a whole number; NaN becomes 0, like Rust's `as`.
DEVICE i64 whole(i32 x) { return x; }
DEVICE i64 whole(i64 x) { return x; }
DEVICE i64 whole(u64 x) { return x; }
DEVICE i64 whole(float x) { return x == x ? (i64)x : 0; }
DEVICE i64 whole(double x) { return x == x ? (i64)x : 0; }

template <typename To> struct Narrow {
    template <typename From> static DEVICE To of(From x) { return (To)whole(x); }
};
template <> struct Narrow<u64> {
    template <typename From> static DEVICE u64 of(From x) { return (u64)whole(x); }
    static DEVICE u64 of(float x) { return x >= 0 ? (u64)x : (u64)whole(x); }
    static DEVICE u64 of(double x) { return x >= 0 ? (u64)x : (u64)whole(x); }
};
template <> struct Narrow<bool> {
    template <typename From> static DEVICE bool of(From x) { return x != 0; }
};
template <> struct Narrow<float> {
    template <typename From> static DEVICE float of(From x) { return (float)x; }
};
template <> struct Narrow<double> {
    template <typename From> static DEVICE double of(From x) { return (double)x; }
};
template <> struct Narrow<f16> {
    template <typename From> static DEVICE f16 of(From x) {
        f16 y;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"((float)x));
        return y;
    }
};
template <> struct Narrow<bf16> {
    template <typename From> static DEVICE bf16 of(From x) {
        bf16 y;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"((float)x));
        return y;
    }
};

// Converts a value to another type: floats are cut off to integers, which wrap.
template <typename To, typename From> struct Cast {
    static DEVICE To of(From x) { return Narrow<To>::of(widen(x)); }
};
template <typename T> struct Cast<T, T> {
    static DEVICE T of(T x) { return x; }
};
template <typename To, typename From> DEVICE To cast(From x) { return Cast<To, From>::of(x); }

// Returns a number that the host gave: as bits of a double for floats, as an integer for the others.
template <typename T> DEVICE T number(u64 bits) { return Narrow<T>::of((i64)bits); }
template <> DEVICE float number<float>(u64 bits) { return (float)__longlong_as_double(bits); }
template <> DEVICE double number<double>(u64 bits) { return __longlong_as_double(bits); }

// Neighbouring elements, which are read and written at once.
template <typename T, int N> struct alignas(sizeof(T) * N) Pack { T of[N]; };

// The host memory where kernels report errors. There are no atomics across the bus. See async_errors.rs.
struct Fault {
    u64 reported;
    u64 code;
    i64 details[3];
    // A lock in device memory: the thread that holds it writes.
    u32* lock;
};

// Reports an error, unless one was reported before or is being reported.
DEVICE void report(u64 fault, u64 code, i64 a, i64 b, i64 c) {
    volatile Fault* to = (volatile Fault*)fault;
    if (to->reported != 0) return;
    u32* lock = to->lock;
    if (atomicExch(lock, 1u) != 0) return;
    __threadfence_system();
    if (to->reported == 0) {
        to->code = code;
        to->details[0] = a;
        to->details[1] = b;
        to->details[2] = c;
        __threadfence_system();
        to->reported = 1;
    }
    __threadfence_system();
    atomicExch(lock, 0u);
}
