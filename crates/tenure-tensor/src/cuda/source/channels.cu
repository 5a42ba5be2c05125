// The computations per channel of batch normalisation. The host has defined `C`, the type to compute in; the dtypes
// `Weight`, `Mean`, `Variance` and `Bias`; and `BACKWARD`, 0 or 1.

// A number for each channel, or nothing if `first` is 0.
struct Channels {
    u64 first;
    // The stride in elements.
    u64 stride;
    template <typename T> DEVICE T& of(u64 channel) const { return ((T*)first)[channel * stride]; }
};

#if BACKWARD
struct Params {
    // Read: sums of the output's gradient (`grads`) and of its products with deviations (`products`).
    Channels grads, products, rstd, weight;
    // Written.
    Channels slope, shift, to_weight, to_bias;
    // The number of channels, and of elements in a channel.
    u64 channels, count;
};

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.channels) return;
    const C grads = p.grads.of<C>(at), products = p.products.of<C>(at), rstd = p.rstd.of<C>(at);
    const C weight = p.weight.first != 0 ? cast<C>(p.weight.of<Weight>(at)) : (C)1;
    const C share = (C)-1 / number<C>(p.count);
    p.shift.of<C>(at) = grads * weight * rstd * share;
    p.slope.of<C>(at) = products * weight * rstd * share * rstd * rstd;
    if (p.to_weight.first != 0) p.to_weight.of<Weight>(at) = cast<Weight>(products * rstd);
    if (p.to_bias.first != 0) p.to_bias.of<Bias>(at) = cast<Bias>(grads);
}
#else
struct Params {
    // Read: means, and sums of squared deviations (`squares`).
    Channels mean, squares, weight;
    // Updated.
    Channels running_mean, running_variance;
    // Written.
    Channels rstd, scale;
    // The number of channels and of elements in a channel, the momentum, and the number added to variances.
    u64 channels, count, momentum, eps;
};

// Computed as `double`, so that an average of any dtype moves as precisely as it can.
template <typename Average> DEVICE void move(Average& average, double to, double momentum) {
    average = cast<Average>(cast<double>(average) * (1 - momentum) + to * momentum);
}

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.channels) return;
    const C variance = p.squares.of<C>(at) / number<C>(p.count);
    const C rstd = (C)1 / sqrt(variance + number<C>(p.eps));
    p.rstd.of<C>(at) = rstd;
    if (p.weight.first != 0) p.scale.of<C>(at) = rstd * cast<C>(p.weight.of<Weight>(at));
    if (p.running_mean.first == 0) return;
    const double count = number<double>(p.count), momentum = number<double>(p.momentum);
    move(p.running_mean.of<Mean>(at), p.mean.of<C>(at), momentum);
    move(p.running_variance.of<Variance>(at), variance * (count / (count - 1)), momentum);
}
#endif
