// Folds of many values to one. The host has defined `INPUTS` and `OUTPUTS`, their numbers; `C`, the type to compute in;
// and `To`.

template <typename T> DEVICE T lowest() { return -INFINITE(T); }
template <> DEVICE i64 lowest<i64>() { return (i64)0x8000000000000000ll; }
template <typename T> DEVICE T highest() { return INFINITE(T); }
template <> DEVICE i64 highest<i64>() { return 0x7fffffffffffffffll; }

// Defines a fold with one sum: `MAP` of the value `x`, of `given`, and of the number `at`; `MERGE` of the sums `a` and
// `b`; `FINISH` of the sum `s`, of `given`, and of `count`.
#define EACH(SUM, START, MAP, MERGE, FINISH)                                                                       \
    struct Fold {                                                                                                  \
        struct Sum { SUM of; };                                                                                    \
        static DEVICE Sum start() { return Sum{START}; }                                                           \
        static DEVICE SUM merged(SUM a, SUM b) { return MERGE; }                                                   \
        static DEVICE SUM mapped(C x, C given, i64 at) { return MAP; }                                             \
        static DEVICE Sum merge(Sum a, Sum b) { return Sum{merged(a.of, b.of)}; }                                  \
        template <int G> static DEVICE void step(Sum& sum, const C (&x)[INPUTS][G], C given, i64 at, i64 stride) {      \
            SUM part = mapped(x[0][0], given, at);                                                                 \
            for (int i = 1; i < G; i++) part = merged(part, mapped(x[0][i], given, at + i * stride));              \
            sum.of = merged(sum.of, part);                                                                         \
        }                                                                                                          \
        static DEVICE void finish(Sum sum, C given, i64 count, To (&out)[OUTPUTS]) {                                     \
            const SUM s = sum.of;                                                                                  \
            out[0] = cast<To>(FINISH);                                                                             \
        }                                                                                                          \
    };

// Returns a quotient of counts, which need not be exact to the last bit.
template <typename N> DEVICE N ratio(N a, N b) { return a / b; }
template <> DEVICE float ratio(float a, float b) { return __fdividef(a, b); }

// Means and sums of squared deviations of groups, which are merged (Chan, Golub and LeVeque, 1983).
struct Moments {
    struct Sum { C count, mean, squares; };
    static DEVICE Sum start() { return Sum{(C)0, (C)0, (C)0}; }
    static DEVICE Sum merge(Sum a, Sum b) {
        const C count = a.count + b.count, share = count > (C)0 ? ratio(b.count, count) : (C)0, by = b.mean - a.mean;
        return Sum{count, a.mean + by * share, a.squares + b.squares + by * (a.count * share) * by};
    }
    template <int G> static DEVICE void step(Sum& sum, const C (&x)[INPUTS][G], C, i64, i64) {
        C mean = x[0][0], squares = (C)0;
        for (int i = 1; i < G; i++) mean += x[0][i];
        mean *= (C)1 / (C)G;
        for (int i = 0; i < G; i++) squares += (x[0][i] - mean) * (x[0][i] - mean);
        sum = merge(sum, Sum{(C)G, mean, squares});
    }
    static DEVICE void finish(Sum sum, C, i64 count, To (&out)[OUTPUTS]) {
        out[0] = cast<To>(count > 0 ? sum.mean : (C)0 / (C)count);
        out[OUTPUTS - 1] = cast<To>(sum.squares);
    }
};

// Sums of a gradient, and of its products with deviations from the given mean. If there is a third input, elements
// count where it is above 0.
struct Products {
    struct Sum { C grads, products; };
    static DEVICE Sum start() { return Sum{(C)0, (C)0}; }
    static DEVICE Sum merge(Sum a, Sum b) { return Sum{a.grads + b.grads, a.products + b.products}; }
    template <int G> static DEVICE void step(Sum& sum, const C (&x)[INPUTS][G], C given, i64, i64) {
        Sum part = start();
        for (int i = 0; i < G; i++) {
            const C grad = INPUTS > 2 && x[INPUTS - 1][i] <= (C)0 ? (C)0 : x[0][i];
            part.grads += grad;
            part.products += grad * (x[INPUTS > 1 ? 1 : 0][i] - given);
        }
        sum = merge(sum, part);
    }
    static DEVICE void finish(Sum sum, C, i64, To (&out)[OUTPUTS]) {
        out[0] = cast<To>(sum.grads);
        out[OUTPUTS - 1] = cast<To>(sum.products);
    }
};

// Returns the number to subtract before taking exponentials: 0 for infinities, as infinity minus infinity is NaN.
DEVICE C base_of(C x) { return x == INFINITE(C) || x == -INFINITE(C) ? (C)0 : x; }
