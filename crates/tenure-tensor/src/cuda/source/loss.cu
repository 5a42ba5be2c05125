// Cross entropy and its gradient. The host has put lines.cu and exponentials.cu before this, and has defined
// `BACKWARD`, `WEIGHTED` and `SMOOTH`, 0 or 1.

struct Params {
    // The losses, or with `BACKWARD` the gradient of the scores.
    u64 out;
    u64 scores;
    u64 classes;
    // A weight for each class.
    u64 weight;
    // For each row: the logarithm of the sum of exponentials, the row's weight, and with `BACKWARD` the loss's
    // gradient.
    u64 logs, weights, grads;
    // The fractions of a row's target that each class has, and that the right class has in addition.
    u64 share, rest;
    i64 ignored;
    // The number of classes, and the distance in elements of rows of scores, or of their gradient.
    u64 n, pitch;
    u64 rows;
    u64 lanes;
    u64 fault, code;
};

DEVICE C weight_of(const Params& p, u64 class_) { return WEIGHTED ? ((const C*)p.weight)[class_] : (C)1; }

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    const u32 lanes = (u32)p.lanes;
    const u64 row = row_of(lanes), first = row * p.pitch;
    const bool is_there = row < p.rows;
    const i64 right = is_there ? ((const i64*)p.classes)[row] : p.ignored;
    const bool is_known = right >= 0 && (u64)right < p.n, counts = right != p.ignored && is_known;
    // `Line` assumes contiguous rows.
    const u64 scores[] = {p.scores + row * (p.pitch - p.n) * sizeof(T)};
    const C share = number<C>(p.share), rest = number<C>(p.rest);
#if BACKWARD
    C total = (C)0, shared = (C)0, own = (C)0, log = (C)0;
    C all = (C)p.n;
#if WEIGHTED && SMOOTH
    all = (C)0;
    for (u64 at = threadIdx.x % lanes; at < p.n; at += lanes) all += weight_of(p, at);
    all = sum_of(all, lanes);
#endif
    if (counts) {
        const C grad = ((const C*)p.grads)[row];
        log = ((const C*)p.logs)[row];
        own = rest * weight_of(p, (u64)right);
        total = grad * (SMOOTH ? own + share * all : own);
        shared = grad * share;
        own *= grad;
    }
    Line line(scores, row, is_there, p.n, lanes);
    line.for_each([&](auto& x, u64 at, int) {
        constexpr int W = sizeof(x[0]) / sizeof(C);
        for (int i = 0; i < W; i++) {
            C to = total * exp(x[0][i] - log);
            if (SMOOTH) to -= shared * weight_of(p, at + i);
            if ((i64)(at + i) == right) to -= own;
            x[0][i] = counts ? to : (C)0;
        }
        store(p.out, first + at, x[0]);
    });
#else
    if (right != p.ignored && !is_known && threadIdx.x % lanes == 0) report(p.fault, p.code, right, 1, (i64)p.n);
    Line line(scores, row, counts, p.n, lanes);
    Exponentials all = NOTHING;
    // Sums of weights, and of weights times scores. From each score, a nearby score is subtracted.
    struct Weighted {
        C weights, scores;
    } weighted = {(C)0, (C)0};
    C near = SMOOTH && counts ? cast<C>(((const T*)p.scores)[first]) : (C)0;
    if (near == INFINITE(C) || near == -INFINITE(C)) near = (C)0;
    line.for_each([&](auto& x, u64 at, int) {
        all = merge(all, exponentials(x[0]));
        if (!SMOOTH) return;
        constexpr int W = sizeof(x[0]) / sizeof(C);
        for (int i = 0; i < W; i++) {
            const C weight = weight_of(p, at + i);
            weighted.weights += weight;
            weighted.scores += weight * (x[0][i] - near);
        }
    });
    all = merged(all, lanes, NOTHING, merge);
#if SMOOTH
    weighted = merged(weighted, lanes, Weighted{(C)0, (C)0}, [](Weighted a, Weighted b) {
        return Weighted{a.weights + b.weights, a.scores + b.scores};
    });
#endif
    if (!is_there || line.lane != 0) return;
    C loss = (C)0, sum_log = (C)0, own = (C)0;
    if (counts) {
        sum_log = log(all.sum);
        own = weight_of(p, (u64)right);
        loss = rest * own * (sum_log - (cast<C>(((const T*)p.scores)[first + (u64)right]) - all.largest));
        if (SMOOTH) loss += share * (weighted.weights * (sum_log + (all.largest - near)) - weighted.scores);
    }
    ((C*)p.out)[row] = loss;
    ((C*)p.logs)[row] = counts ? all.largest + sum_log : (C)0;
    ((C*)p.weights)[row] = own;
#endif
}
