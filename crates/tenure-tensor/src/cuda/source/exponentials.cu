// The sum of exponentials so far, each less the largest number so far.
struct Exponentials {
    C largest, sum;
};

DEVICE Exponentials merge(Exponentials a, Exponentials b) {
    const C largest = a.largest > b.largest ? a.largest : b.largest;
    // Infinity minus infinity would be NaN.
    const C base = largest == -INFINITE(C) ? (C)0 : largest;
    return Exponentials{largest, a.sum * exp(a.largest - base) + b.sum * exp(b.largest - base)};
}

template <int W> DEVICE Exponentials exponentials(const C (&x)[W]) {
    Exponentials all = {x[0], (C)0};
    for (int i = 1; i < W; i++) all.largest = x[i] > all.largest ? x[i] : all.largest;
    const C base = all.largest == -INFINITE(C) ? (C)0 : all.largest;
    for (int i = 0; i < W; i++) all.sum += exp(x[i] - base);
    return all;
}

#define NOTHING (Exponentials{-INFINITE(C), (C)0})
