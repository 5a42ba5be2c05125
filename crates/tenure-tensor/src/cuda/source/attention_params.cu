// The parameters of the kernels in attention.cu and attention_halves.cu, which list the host's definitions.

// Some rows with dense columns.
struct Rows {
    Stored* data;
    u64 stride;
    u64 count;
};

// A tensor (batch, heads, rows, columns) with dense columns; strides are in elements.
struct Heads {
    u64 data;
    u64 batch;
    u64 head;
    u64 row;
};

struct Params {
    u64 batch;
    u64 heads;
    // The number of query heads that share a head of keys.
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
    // The logarithms of the sums of weights, (batch, heads, queries).
    u64 sums;
    u64 mask;
    u64 mask_strides[4];
    Heads grad;
    // For each query, the sum of products of weights and their gradients. With matrix units, the base-2 logarithm of
    // the sum of its weights comes before.
    u64 inner;
    Heads to_q;
    Heads to_k;
    Heads to_v;
    // The state where the random numbers begin: each weight, (batch, heads, queries, keys), has one number.
    State state;
    // A weight is kept, and multiplied by `kept_scale`, if its word is below `limit`.
    u64 limit;
    u64 kept_scale;
};

#define HIDDEN (-INFINITE(T))

// OF_QUERIES: a block holds queries, and keys pass by.
#if defined(ATTEND) || defined(EXACT_INNER) || defined(TO_QUERIES)
#define OF_QUERIES
#endif

DEVICE u64 least(u64 a, u64 b) { return a < b ? a : b; }

DEVICE Rows rows_of(const Heads& x, u64 batch, u64 head, u64 first, u64 count) {
    return {(Stored*)x.data + batch * x.batch + head * x.head + first * x.row, x.row, count};
}
