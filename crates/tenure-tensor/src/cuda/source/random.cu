// Random numbers, as defined in random.rs. The host has defined `T`, the type to write; `C`, the type to compute in;
// `DIGITS`, the digits of a uniform `float`; `BLOCK`, the number of elements that a block of words gives; `V`, the
// number of elements of a thread, in whole blocks; and the name of the draw.

#define THREADS 256

struct Params {
    u64 out;
    u64 input;
    u64 count;
    State state;
    u64 numbers[2];
    u64 fault;
    u64 code;
};

// Each operation is rounded on its own, as on the CPU.
DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE double plus(double a, double b) { return __dadd_rn(a, b); }
DEVICE double times(double a, double b) { return __dmul_rn(a, b); }

// Writes numbers in [0, 1): the highest digits of the words.
DEVICE void fractions(const u32 (&w)[4], float (&y)[4]) {
    for (int i = 0; i < 4; i++) y[i] = (float)(w[i] >> (32 - DIGITS)) * (1.0f / (1 << DIGITS));
}
DEVICE void fractions(const u32 (&w)[4], double (&y)[2]) {
    for (int i = 0; i < 2; i++) y[i] = (double)(pair(w, i) >> 11) * (1.0 / (1ll << 53));
}

// Writes numbers of mean 0 and deviation 1 (Box and Muller).
DEVICE void normals(const u32 (&w)[4], float (&y)[4]) {
    for (int i = 0; i < 4; i += 2) {
        const float u = plus((float)w[i], 0.5f) * 2.3283064365386963e-10f;
        const float v = plus((float)w[i + 1], 0.5f) * 2.3283064365386963e-10f;
        const float radius = sqrtf(-2.0f * logf(u));
        float sin, cos;
        sincosf(6.283185307179586f * v, &sin, &cos);
        y[i] = radius * cos, y[i + 1] = radius * sin;
    }
}
DEVICE void normals(const u32 (&w)[4], double (&y)[2]) {
    const double u = plus((double)pair(w, 0), 0.5) * 5.421010862427522e-20;
    const double v = plus((double)pair(w, 1), 0.5) * 5.421010862427522e-20;
    const double radius = sqrt(-2.0 * log(u));
    double sin, cos;
    sincos(6.283185307179586 * v, &sin, &cos);
    y[0] = radius * cos, y[1] = radius * sin;
}

// Draws the elements of a block of words, from those of the input.
DEVICE void draw(const Params& p, const u32 (&w)[4], const T* x, T* y) {
#if defined(UNIFORM)
    const C low = number<C>(p.numbers[0]), range = number<C>(p.numbers[1]);
    const T high = cast<T>(plus(low, range));
    C fraction[BLOCK];
    fractions(w, fraction);
    for (int i = 0; i < BLOCK; i++) {
        const T value = cast<T>(plus(low, times(range, fraction[i])));
        // Rounding may have reached the upper end, which is excluded.
        y[i] = widen(value) < widen(high) ? value : cast<T>(low);
    }
#elif defined(NORMAL)
    const C mean = number<C>(p.numbers[0]), deviation = number<C>(p.numbers[1]);
    C normal[BLOCK];
    normals(w, normal);
    for (int i = 0; i < BLOCK; i++) y[i] = cast<T>(plus(mean, times(deviation, normal[i])));
#elif defined(RANDINT)
    for (int i = 0; i < BLOCK; i++) y[i] = cast<T>((i64)(p.numbers[0] + __umul64hi(pair(w, i), p.numbers[1])));
#elif defined(BERNOULLI)
    for (int i = 0; i < BLOCK; i++) y[i] = cast<T>((u64)w[i] < p.numbers[0]);
#elif defined(BERNOULLI_EACH)
    for (int i = 0; i < BLOCK; i++) {
        const double probability = widen(x[i]);
        const bool is_one = probability >= 0 && probability <= 1;
        if (!is_one) report(p.fault, p.code, __double_as_longlong(probability), 0, 0);
        y[i] = cast<T>(is_one && w[i] < (u64)round(probability * 4294967296.0));
    }
#elif defined(DROPOUT)
    const C scale = number<C>(p.numbers[1]);
    for (int i = 0; i < BLOCK; i++) y[i] = (u64)w[i] < p.numbers[0] ? cast<T>(widen(x[i]) * scale) : cast<T>(false);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u64 at = ((u64)blockIdx.x * THREADS + threadIdx.x) * V;
    if (at >= p.count) return;
    const int count = p.count - at < V ? (int)(p.count - at) : V;
    const bool is_whole = count == V && (p.out | p.input) % sizeof(Pack<T, V>) == 0;
    const T* from = (const T*)p.input + at;
    T* to = (T*)p.out + at;
    const State state = begin(p.state);
    Pack<T, V> x = {}, y;
    if (p.input != 0) {
        if (is_whole) {
            x = *(const Pack<T, V>*)from;
        } else {
            for (int i = 0; i < V; i++)
                if (i < count) x.of[i] = from[i];
        }
    }
#pragma unroll
    for (int i = 0; i < V; i += BLOCK) {
        u32 w[4];
        philox(state, (at + i) / BLOCK, w);
        draw(p, w, &x.of[i], &y.of[i]);
    }
    if (is_whole) {
        *(Pack<T, V>*)to = y;
    } else {
        for (int i = 0; i < V; i++)
            if (i < count) to[i] = y.of[i];
    }
}
