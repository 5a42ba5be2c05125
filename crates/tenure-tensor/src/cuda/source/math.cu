// The functions of numbers that expressions use, with the same results as on the CPU.

DEVICE bool is_nan(float x) { return x != x; }
DEVICE bool is_nan(double x) { return x != x; }
template <typename N> DEVICE bool is_nan(N) { return false; }

template <typename N> DEVICE N absolute(N x) { return x < (N)0 ? (N)((N)0 - x) : x; }
DEVICE float absolute(float x) { return fabsf(x); }
DEVICE double absolute(double x) { return fabs(x); }

template <typename N> DEVICE N sign(N x) { return x > (N)0 ? (N)1 : x < (N)0 ? (N)((N)0 - (N)1) : (N)0; }

template <typename N> DEVICE N sigmoid(N x) { return (N)1 / ((N)1 + exp(-x)); }

// Return the larger or the smaller number, or NaN if one is NaN.
template <typename N> DEVICE N maximum(N a, N b) { return a > b || is_nan(a) ? a : b; }
template <typename N> DEVICE N minimum(N a, N b) { return a < b || is_nan(a) ? a : b; }

// Quotients of integers. They wrap, and are 0 if the divisor is 0, which is reported.
template <typename N> DEVICE bool by_zero(N b, u64 fault, u64 code) {
    if (b == (N)0) {
        report(fault, code, 0, 0, 0);
        return true;
    }
    return false;
}
template <typename N> DEVICE bool is_minus_one(N b) { return (N)(b + (N)1) == (N)0; }
template <typename N> DEVICE N quotient(N a, N b) { return is_minus_one(b) ? (N)((N)0 - a) : (N)(a / b); }
template <typename N> DEVICE N rest_of(N a, N b) { return is_minus_one(b) ? (N)0 : (N)(a % b); }
template <> DEVICE u8 quotient(u8 a, u8 b) { return a / b; }
template <> DEVICE u8 rest_of(u8 a, u8 b) { return a % b; }
template <> DEVICE u64 quotient(u64 a, u64 b) { return a / b; }
template <> DEVICE u64 rest_of(u64 a, u64 b) { return a % b; }
template <typename N> DEVICE bool is_negative(N x) { return x < (N)0; }

template <typename N> DEVICE N div_trunc(N a, N b, u64 fault, u64 code) {
    return by_zero(b, fault, code) ? (N)0 : quotient(a, b);
}
template <typename N> DEVICE N div_floor(N a, N b, u64 fault, u64 code) {
    if (by_zero(b, fault, code)) return (N)0;
    const N rest = rest_of(a, b);
    return (N)(quotient(a, b) - (N)(rest != (N)0 && is_negative(rest) != is_negative(b)));
}
template <typename N> DEVICE N fmod_of(N a, N b, u64 fault, u64 code) {
    return by_zero(b, fault, code) ? (N)0 : rest_of(a, b);
}
template <typename N> DEVICE N remainder_of(N a, N b, u64 fault, u64 code) {
    if (by_zero(b, fault, code)) return (N)0;
    const N rest = rest_of(a, b);
    return rest != (N)0 && is_negative(rest) != is_negative(b) ? (N)(rest + b) : rest;
}

#define DIVISION_OF(N)                                                                       \
    template <> DEVICE N div_trunc(N a, N b, u64, u64) { return trunc(a / b); }              \
    template <> DEVICE N fmod_of(N a, N b, u64, u64) { return fmod(a, b); }                  \
    template <> DEVICE N remainder_of(N a, N b, u64, u64) {                                  \
        const N rest = fmod(a, b);                                                           \
        if (rest == (N)0) return copysign(rest, b);                                          \
        return (rest < (N)0) != (b < (N)0) ? rest + b : rest;                                \
    }                                                                                        \
    template <> DEVICE N div_floor(N a, N b, u64, u64) {                                     \
        if (b == (N)0) return a / b;                                                         \
        const N rest = fmod(a, b);                                                           \
        N all = (a - rest) / b;                                                              \
        if (rest != (N)0 && (rest < (N)0) != (b < (N)0)) all = all - (N)1;                   \
        return all == (N)0 ? copysign((N)0, a / b) : rint(all);                              \
    }
DIVISION_OF(float)
DIVISION_OF(double)

// Powers. Integer powers wrap; those with a negative exponent are cut off.
template <typename N> DEVICE N power(N a, N b) {
    if (is_negative(b)) {
        if (a == (N)1) return a;
        if (is_minus_one(a)) return (i64)b & 1 ? a : (N)1;
        return (N)0;
    }
    N result = 1;
    for (u64 left = (u64)b; left != 0; left >>= 1) {
        if (left & 1) result = (N)(result * a);
        a = (N)(a * a);
    }
    return result;
}
template <> DEVICE float power(float a, float b) { return powf(a, b); }
template <> DEVICE double power(double a, double b) { return pow(a, b); }

// Shifts by all bits or more leave only the sign.
template <typename N> DEVICE N shift_left(N a, N by) {
    return (i64)by >= 0 && (i64)by < (i64)sizeof(N) * 8 ? (N)((u64)a << (u64)by) : (N)0;
}
template <typename N> DEVICE N shift_right(N a, N by) {
    const i64 last = (i64)sizeof(N) * 8 - 1;
    const bool is_within = (i64)by >= 0 && (i64)by <= last;
    if (!is_within && (N)-1 > (N)0) return (N)0;
    return (N)(a >> (is_within ? (i64)by : last));
}

// (1 + tanh(u)) / 2 for u = √(2/π)·(x + 0.044715·x³), and the slope of 2u.
template <typename N> DEVICE N gelu_share(N x) {
    return sigmoid((N)1.5957691216057308 * x * ((N)1 + (N)0.044715 * x * x));
}
template <typename N> DEVICE N gelu_slope(N x) { return (N)1.5957691216057308 * ((N)1 + (N)3 * (N)0.044715 * x * x); }

// Returns (x + 3) / 6, limited to 0 to 1.
template <typename N> DEVICE N ramp(N x) {
    const N ramp = (x + (N)3) / (N)6;
    return ramp < (N)0 ? (N)0 : ramp > (N)1 ? (N)1 : ramp;
}

template <typename N> DEVICE N mish(N x) {
    // This computes tanh(log(1 + eˣ)) from eˣ alone; from x = 20 on it is 1.
    const N e = exp(x > (N)20 ? (N)20 : x), n = e * (e + (N)2);
    return x * (n / (n + (N)2));
}

template <typename N> DEVICE N log_sigmoid(N x) { return (x < (N)0 ? x : (N)0) - log1p(exp(-absolute(x))); }

// Derivatives of the logarithm of the gamma function. The comments on the CPU's functions say how.
DEVICE double digamma_of_positive(double x) {
    double below = 0;
    while (x < 10.) {
        below += 1. / x;
        x += 1.;
    }
    const double z = 1. / (x * x);
    double series = 1. / 12. * z;
    series = (series - 691. / 32760.) * z;
    series = (series + 1. / 132.) * z;
    series = (series - 1. / 240.) * z;
    series = (series + 1. / 252.) * z;
    series = (series - 1. / 120.) * z;
    series = (series + 1. / 12.) * z;
    return log(x) - 0.5 / x - series - below;
}
DEVICE double digamma(double x) {
    if (x == 0.) return 1. / -x;
    if (!(x < 0.)) return digamma_of_positive(x);
    const double rest = x - trunc(x);
    if (rest == 0.) return rest / rest;
    return digamma_of_positive(1. - x) - 3.14159265358979323846 / tan(3.14159265358979323846 * rest);
}

DEVICE double zeta(double s, double x) {
    double sum = 0;
    while (x < 10. + s) {
        const double term = pow(x, -s);
        sum += term;
        x += 1.;
        if (term <= 1e-18 * sum) return sum;
    }
    const double power = pow(x, -s), step = 1. / (x * x);
    double tail = x * power / (s - 1.) + 0.5 * power, factor = s * power / x;
    const double series[] = {1. / 12., -1. / 720., 1. / 30240., -1. / 1209600., 1. / 47900160.,
                             -691. / 1307674368000., 1. / 74724249600.};
    for (int i = 0; i < 7; i++) {
        tail += series[i] * factor;
        factor *= (s + 2. * i + 1.) * (s + 2. * i + 2.) * step;
    }
    return sum + tail;
}
DEVICE double polygamma(double order, double x) {
    const double s = order + 1., sign = fmod(order, 2.) == 0. ? -1. : 1.;
    if (x > 0.) return sign * tgamma(s) * zeta(s, x);
    const double rest = x - floor(x);
    if (rest == 0.) return sign / rest;
    return sign * tgamma(s) * (zeta(s, rest) + sign * (zeta(s, 1. - rest) - zeta(s, 1. - x)));
}
