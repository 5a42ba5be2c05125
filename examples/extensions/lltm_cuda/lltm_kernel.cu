// The kernels of LLTM: what follows the product of the weights, an element of the state for each thread. nvcc compiles
// this file, and so does NVRTC, which has no headers: both take it as it is.

template <typename T> __device__ T sigmoid(T z) { return T(1) / (T(1) + exp(-z)); }

template <typename T> __device__ T elu(T z) { return z > T(0) ? z : exp(z) - T(1); }

// The gates of an element: a row of `gates` has those of the whole state one after the other.
template <typename T> struct Gates {
    T input, output, candidate;

    __device__ Gates(const T *gates, int index, int state) {
        const T *row = gates + index / state * 3 * state + index % state;
        input = row[0];
        output = row[state];
        candidate = row[2 * state];
    }
};

template <typename T>
__global__ void lltm_forward(T *new_h, T *new_cell, const T *gates, const T *old_cell, int state, int count) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    const Gates<T> z(gates, index, state);
    const T cell = old_cell[index] + elu(z.candidate) * sigmoid(z.input);
    new_cell[index] = cell;
    new_h[index] = tanh(cell) * sigmoid(z.output);
}

template <typename T>
__global__ void lltm_backward(T *d_gates, T *d_old_cell, const T *grad_h, const T *grad_cell, const T *gates,
                              const T *new_cell, int state, int count) {
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= count)
        return;
    const Gates<T> z(gates, index, state);
    const T input = sigmoid(z.input), output = sigmoid(z.output), cell = tanh(new_cell[index]);
    const T d_cell = grad_h[index] * output * (T(1) - cell * cell) + grad_cell[index];
    T *row = d_gates + index / state * 3 * state + index % state;
    row[0] = d_cell * elu(z.candidate) * input * (T(1) - input);
    row[state] = grad_h[index] * cell * output * (T(1) - output);
    row[2 * state] = d_cell * input * (z.candidate > T(0) ? T(1) : exp(z.candidate));
    d_old_cell[index] = d_cell;
}
