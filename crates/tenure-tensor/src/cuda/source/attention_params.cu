// What attention's kernels are given, for attention.cu and attention_halves.cu, which say what the host has defined.

// Some rows, of which columns are dense.
struct Rows {
    Stored* data;
    u64 stride;
    u64 count;
};

// (batch, heads, rows, columns) of which columns are dense, strides in elements.
struct Heads {
    u64 data;
    u64 batch;
    u64 head;
    u64 row;
};

struct Params {
    u64 batch;
    u64 heads;
    // Heads of queries that share keys.
    u64 group;
    u64 queries;
    u64 keys;
    u64 width;
    u64 value_width;
    u64 scale;
    u64 is_causal;
    Heads q;
    Heads k;
    Heads v;
    Heads out;
    // Logarithms of the sums of weights, (batch, heads, queries).
    u64 sums;
    u64 mask;
    u64 mask_strides[4];
    Heads grad;
    // Of each query, the sum of products of weights and their gradients; of halves by matrix units, after the logarithm
    // of its weights' sum, to base 2.
    u64 inner;
    Heads to_q;
    Heads to_k;
    Heads to_v;
    // Where the numbers begin of which each weight, (batch, heads, queries, keys), has one.
    State state;
    // Weights are kept whose word is below it, and multiplied.
    u64 limit;
    u64 kept_scale;
};

#define HIDDEN (-INFINITE(T))

// Whether a block has queries, and keys pass by.
#if defined(ATTEND) || defined(EXACT_INNER) || defined(TO_QUERIES)
#define OF_QUERIES
#endif

DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

DEVICE Rows rows_of(const Heads& x, u64 batch, u64 head, u64 first, u64 count) {
    return {(Stored*)x.data + batch * x.batch + head * x.head + first * x.row, x.row, count};
}
