// Kernels that the tests of NVIDIA devices run.

extern "C" __global__ void fill(float* out, float value, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) out[i] = value;
}

// Adds to `*wrong` the number of the `count` bytes that are not `expected`.
extern "C" __global__ void compare(const unsigned char* bytes, int expected, int count, unsigned int* wrong) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count && bytes[i] != expected) atomicAdd(wrong, 1u);
}

// Keeps the device busy for `cycles` clock cycles.
extern "C" __global__ void spin(long long cycles) {
    long long start = clock64();
    while (clock64() - start < cycles) {}
}

// Ends in a trap.
extern "C" __global__ void trap() {
    __trap();
}

// Ends in a failed assertion.
extern "C" __global__ void deny() {
    assert(false);
}

// Writes one byte.
extern "C" __global__ void poke(unsigned char* target) {
    *target = 1;
}
