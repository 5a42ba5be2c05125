// Number series, computed as on the CPU: each product and each sum is rounded. The host has defined `T`, whether it is
// floating, and the rule.

struct Params {
    u64 out;
    u64 count;
    u64 numbers[3];
};

DEVICE double along(double start, double step, u64 i) { return __dadd_rn(start, __dmul_rn(step, (double)i)); }

// Returns number `i` of `count` from `start` to `end`, exact at both.
DEVICE double between(double start, double end, u64 i, u64 count) {
    const double step = (end - start) / (double)(max(count, 2ull) - 1);
    return i < count / 2 || count == 1 ? along(start, step, i) : along(end, -step, count - 1 - i);
}

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.count) return;
    const double first = number<double>(p.numbers[0]), second = number<double>(p.numbers[1]);
#if defined(INTEGERS)
    const i64 integer = p.numbers[0] + p.numbers[1] * i;
    const T value = IS_FLOATING ? cast<T>((double)integer) : cast<T>(integer);
#elif defined(FLOATS)
    const T value = cast<T>(along(first, second, i));
#elif defined(BETWEEN)
    const T value = cast<T>(between(first, second, i, p.count));
#else
    double power = pow(number<double>(p.numbers[2]), between(first, second, i, p.count));
    // An integer that is missed by the last bit would be cut off to the one below.
    if (!IS_FLOATING && fabs(power - rint(power)) <= 4.5e-16 * fabs(power)) power = rint(power);
    const T value = cast<T>(power);
#endif
    ((T*)p.out)[i] = value;
}
