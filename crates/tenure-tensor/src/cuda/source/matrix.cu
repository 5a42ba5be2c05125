// Matrix units for attention_halves.cu. Of a matrix of 16 rows, each thread of a warp has two rows, eight apart.

#define ALL 0xffffffffu
#define LANE (threadIdx.x % 32)
// The thread's first row, and its first column of each eight: it has two neighbours.
#define ROW (LANE / 4)
#define COLUMN (LANE % 4 * 2)

// Packs two 16-bit floats.
DEVICE u32 pair(float x, float y) {
    u32 both;
    asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
DEVICE float first_of(u32 both) { return widen(Stored{(u16)both}); }
DEVICE float second_of(u32 both) { return widen(Stored{(u16)(both >> 16)}); }

// Adds the product of 16 x 16 and 16 x 8 16-bit floats, of which a thread has eight and four, to 16 x 8 numbers, of
// which it has four. It is volatile because all threads of a warp multiply together, so it must stay in place.
DEVICE void multiply(float (&sums)[4], const u32 (&a)[4], u32 b, u32 c) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." HALF "." HALF ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(c));
}

DEVICE u32 shared_address(const void* at) { return (u32)__cvta_generic_to_shared(at); }

// Reads four matrices of 8 x 8 16-bit floats. The threads have the addresses of the rows, eight threads for each
// matrix.
DEVICE void read(u32 (&to)[4], const Stored* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void read_transposed(u32 (&to)[4], const Stored* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Begins to copy, or to write zeros.
template <int BYTES> DEVICE void copy(void* to, const void* from, bool is_there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                 :
                 : "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(is_there ? BYTES : 0)
                 : "memory");
}
// Waits until the copies of all threads have arrived, and all threads are done with the data before.
DEVICE void arrive() {
    asm volatile("cp.async.wait_all;" : : : "memory");
    __syncthreads();
}

DEVICE float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Returns the largest over the threads that have columns of the same rows.
DEVICE float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL, x, 2));
}
DEVICE float sum_of_row(float x) {
    x += __shfl_xor_sync(ALL, x, 1);
    return x + __shfl_xor_sync(ALL, x, 2);
}
