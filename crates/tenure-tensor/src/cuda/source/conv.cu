// Convolutions, their transposes, and the gradients of their weights, one element after the other. The host has defined
// `Stored`, the type in memory; `T`, the type to compute in; and one of FORWARD, DATA_GRADIENT and WEIGHT_GRADIENT.

#define THREADS 256

// A tensor (images, channels, depth, height, width); strides are in elements.
struct Images {
    u64 data;
    u64 strides[5];
};

struct Params {
    u64 images;
    u64 groups;
    // The channels and outputs of a group.
    u64 channels;
    u64 outputs;
    u64 input_sizes[3];
    u64 kernel[3];
    u64 output_sizes[3];
    u64 stride[3];
    u64 padding[3];
    u64 dilation[3];
    Images input;
    Images weight;
    Images output;
    u64 bias;
};

DEVICE Stored* at(const Images& x, u64 image, u64 channel, const u64 (&pixel)[3]) {
    return (Stored*)x.data + image * x.strides[0] + channel * x.strides[1] + pixel[0] * x.strides[2] +
           pixel[1] * x.strides[3] + pixel[2] * x.strides[4];
}

DEVICE void unravel(u64& index, const u64 (&sizes)[3], u64 (&pixel)[3]) {
    for (int dim = 2; dim >= 0; dim--) {
        pixel[dim] = index % sizes[dim];
        index /= sizes[dim];
    }
}

// Finds the pixel of the input that an element of the kernel meets at a pixel of the output. Returns whether there is
// one.
DEVICE bool met(const Params& p, const u64 (&output)[3], const u64 (&tap)[3], u64 (&input)[3]) {
    bool is_there = true;
    for (int dim = 0; dim < 3; dim++) {
        const u64 padded = output[dim] * p.stride[dim] + tap[dim] * p.dilation[dim];
        input[dim] = padded - p.padding[dim];
        is_there = is_there && padded >= p.padding[dim] && input[dim] < p.input_sizes[dim];
    }
    return is_there;
}

// Finds the pixel of the output at which an element of the kernel meets a pixel of the input. Returns whether there is
// one.
DEVICE bool meeting(const Params& p, const u64 (&input)[3], const u64 (&tap)[3], u64 (&output)[3]) {
    bool is_there = true;
    for (int dim = 0; dim < 3; dim++) {
        const u64 padded = input[dim] + p.padding[dim], reach = tap[dim] * p.dilation[dim];
        output[dim] = (padded - reach) / p.stride[dim];
        is_there = is_there && padded >= reach && (padded - reach) % p.stride[dim] == 0 &&
                   output[dim] < p.output_sizes[dim];
    }
    return is_there;
}

DEVICE T product(const Stored* a, const Stored* b) { return cast<T>(*a) * cast<T>(*b); }

extern "C" __global__ void __launch_bounds__(THREADS) kernel(const __grid_constant__ Params p) {
    u64 pixel[3], tap[3], other[3];
    const u64 taps = p.kernel[0] * p.kernel[1] * p.kernel[2];
#ifdef WEIGHT_GRADIENT
    // A block computes each element: its threads add up pixels in turn, and then merge their sums.
    __shared__ T sums[THREADS];
    const u64 count = p.groups * p.outputs * p.channels * taps;
    const u64 pixels = p.output_sizes[0] * p.output_sizes[1] * p.output_sizes[2];
    for (u64 element = blockIdx.x; element < count; element += gridDim.x) {
        u64 rest = element;
        unravel(rest, p.kernel, tap);
        const u64 channel = rest % p.channels, output = rest / p.channels, group = output / p.outputs;
        T sum = 0;
        for (u64 i = threadIdx.x; i < p.images * pixels; i += THREADS) {
            u64 image = i;
            unravel(image, p.output_sizes, pixel);
            if (met(p, pixel, tap, other))
                sum += product(at(p.input, image, group * p.channels + channel, other), at(p.output, image, output, pixel));
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        if (threadIdx.x == 0) *at(p.weight, output, channel, tap) = cast<Stored>(sums[0]);
        __syncthreads();
    }
#else
#ifdef FORWARD
    const u64 own = p.outputs, others = p.channels;
#else
    const u64 own = p.channels, others = p.outputs;
#endif
    const u64(&sizes)[3] =
#ifdef FORWARD
        p.output_sizes;
#else
        p.input_sizes;
#endif
    const u64 count = p.images * p.groups * own * sizes[0] * sizes[1] * sizes[2];
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (u64)gridDim.x * THREADS) {
        u64 rest = i;
        unravel(rest, sizes, pixel);
        const u64 channel = rest % (p.groups * own), image = rest / (p.groups * own), group = channel / own;
        T sum = 0;
        for (u64 c = 0; c < others; c++) {
            for (u64 number = 0; number < taps; number++) {
                u64 index = number;
                unravel(index, p.kernel, tap);
#ifdef FORWARD
                if (met(p, pixel, tap, other))
                    sum += product(at(p.input, image, group * others + c, other), at(p.weight, channel, c, tap));
#else
                if (meeting(p, pixel, tap, other))
                    sum += product(at(p.output, image, group * others + c, other),
                                   at(p.weight, group * others + c, channel - group * own, tap));
#endif
            }
        }
        if (p.bias) sum += cast<T>(((const Stored*)p.bias)[channel]);
#ifdef FORWARD
        *at(p.output, image, channel, pixel) = cast<Stored>(sum);
#else
        *at(p.input, image, channel, pixel) = cast<Stored>(sum);
#endif
    }
#endif
}
