// Pooling: each window of an image becomes one pixel. The host has defined `T`, the type in memory; `C`, the type to
// compute in; `V`, the number of elements of a thread; `Place`, the type of numbers of pixels and elements; `Tap`, the
// type of an element's number in its window; and the name of the operation. Images are (outer, depth, height, width,
// inner): channels are in `outer` or in `inner`.

struct Params {
    u64 out;
    u64 image;
    u64 taps;
    u64 count;
    // The inner size in vectors.
    u64 inner;
    // Depth, height and width of the large images, and of the small ones, which have a pixel for each window.
    u64 source[3];
    u64 target[3];
    u64 kernel[3];
    u64 stride[3];
    u64 padding[3];
    u64 dilation[3];
    u64 counts_padding;
};

typedef Pack<T, V> Values;
typedef Pack<Tap, V> Taps;

// The number that stands for no element of a window.
#define NONE ((Tap)(sizeof(Tap) == 1 ? 0xff : 0x7fffffff))

// The place of a thread's vector.
struct Pixel {
    Place outer, at[3], inner;
};

DEVICE Pixel find(const Params& p, const u64 (&sizes)[3], Place thread) {
    Pixel pixel;
    pixel.inner = thread % (Place)p.inner, thread /= (Place)p.inner;
    for (int dim = 2; dim >= 0; dim--) pixel.at[dim] = thread % (Place)sizes[dim], thread /= (Place)sizes[dim];
    pixel.outer = thread;
    return pixel;
}

// Returns the number of the vector at another place of the same image, or of an image of other sizes.
DEVICE u64 vector(const Params& p, const u64 (&sizes)[3], const Pixel& from, Place d, Place h, Place w) {
    const Place row = (from.outer * (Place)sizes[0] + d) * (Place)sizes[1] + h;
    return (row * (Place)sizes[2] + w) * (Place)p.inner + from.inner;
}

// The pixels of a window along a dimension, up to before `end`, and the number of elements that it counts as.
struct Window {
    Place first, end, count;
};

DEVICE Window window(const Params& p, int dim, Place number) {
    Window window;
    const Place size = p.source[dim];
#if defined(EVEN)
    const i64 target = p.target[dim];
    window.first = (i64)number * size / target;
    window.end = (((i64)number + 1) * size + target - 1) / target;
    window.count = window.end - window.first;
#else
    const Place padding = p.padding[dim], first = number * (Place)p.stride[dim];
    const Place end = min(first + (Place)p.kernel[dim], size + 2 * padding);
    window.first = max(first - padding, (Place)0);
    window.end = max(min(end - padding, size), window.first);
    window.count = p.counts_padding ? end - first : window.end - window.first;
#endif
    return window;
}

// The windows that may contain a pixel, up to before `end`.
struct Windows {
    Place first, end;
};

DEVICE Windows windows(const Params& p, int dim, Place pixel) {
    Windows windows;
#if defined(EVEN)
    const i64 size = p.source[dim], target = p.target[dim];
    windows.first = pixel * target / size;
    windows.end = (((i64)pixel + 1) * target + size - 1) / size;
#else
    const Place stride = p.stride[dim], reach = (Place)p.dilation[dim] * ((Place)p.kernel[dim] - 1);
    const Place padded = pixel + (Place)p.padding[dim];
    windows.first = padded > reach ? (padded - reach + stride - 1) / stride : 0;
    windows.end = min(padded / stride + 1, (Place)p.target[dim]);
#endif
    return windows;
}

// Returns the number of a pixel in a window along a dimension, or -1 if the dilated window skips it.
DEVICE Place tap(const Params& p, int dim, Place window, Place pixel) {
    const Place dilation = p.dilation[dim], ahead = pixel + (Place)p.padding[dim] - window * (Place)p.stride[dim];
    if (dilation == 1) return ahead;
    return ahead % dilation == 0 ? ahead / dilation : -1;
}

// Returns the pixel of an element of a window along a dimension. It may be outside the image.
DEVICE Place pixel(const Params& p, int dim, Place window, Place tap) {
    return window * (Place)p.stride[dim] + tap * (Place)p.dilation[dim] - (Place)p.padding[dim];
}

extern "C" __global__ void __launch_bounds__(256) kernel(const __grid_constant__ Params p) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= p.count) return;
    const Values* image = (const Values*)p.image;
    C sums[V];
#if defined(MAX_POOL)
    const Pixel own = find(p, p.target, thread);
    Values best;
    Taps taps;
    for (int i = 0; i < V; i++) {
        sums[i] = -INFINITE(C), best.of[i] = cast<T>(-INFINITE(C)), taps.of[i] = NONE;
    }
    Tap number = 0;
    for (Place d = 0; d < (Place)p.kernel[0]; d++) {
        const Place depth = pixel(p, 0, own.at[0], d);
        for (Place h = 0; h < (Place)p.kernel[1]; h++) {
            const Place row = pixel(p, 1, own.at[1], h);
            const bool is_inside = depth >= 0 && depth < (Place)p.source[0] && row >= 0 && row < (Place)p.source[1];
            for (Place w = 0; w < (Place)p.kernel[2]; w++, number++) {
                const Place column = pixel(p, 2, own.at[2], w);
                if (!is_inside || column < 0 || column >= (Place)p.source[2]) continue;
                const Values x = image[vector(p, p.source, own, depth, row, column)];
                for (int i = 0; i < V; i++) {
                    const C value = widen(x.of[i]);
                    // NaN counts as larger than any number.
                    if (value > sums[i] || value != value || taps.of[i] == NONE) {
                        sums[i] = value, best.of[i] = x.of[i], taps.of[i] = number;
                    }
                }
            }
        }
    }
    ((Values*)p.out)[thread] = best;
    ((Taps*)p.taps)[thread] = taps;
#elif defined(MAX_POOL_PICK)
    const Pixel own = find(p, p.target, thread);
    const Taps taps = ((const Taps*)p.taps)[thread];
    Values y;
    for (int i = 0; i < V; i++) {
        y.of[i] = cast<T>(0);
        if (taps.of[i] == NONE) continue;
        const Place width = p.kernel[2], height = p.kernel[1], number = taps.of[i];
        const Place d = pixel(p, 0, own.at[0], number / width / height);
        const Place h = pixel(p, 1, own.at[1], number / width % height);
        const Place w = pixel(p, 2, own.at[2], number % width);
        y.of[i] = image[vector(p, p.source, own, d, h, w)].of[i];
    }
    ((Values*)p.out)[thread] = y;
#elif defined(AVG_POOL)
    const Pixel own = find(p, p.target, thread);
    for (int i = 0; i < V; i++) sums[i] = 0;
    const Window depth = window(p, 0, own.at[0]), height = window(p, 1, own.at[1]), width = window(p, 2, own.at[2]);
    for (Place d = depth.first; d < depth.end; d++) {
        for (Place h = height.first; h < height.end; h++) {
#pragma unroll 4
            for (Place w = width.first; w < width.end; w++) {
                const Values x = image[vector(p, p.source, own, d, h, w)];
                for (int i = 0; i < V; i++) sums[i] += widen(x.of[i]);
            }
        }
    }
    const C count = (C)((i64)depth.count * height.count * width.count);
    Values y;
    for (int i = 0; i < V; i++) y.of[i] = cast<T>(sums[i] / count);
    ((Values*)p.out)[thread] = y;
#else
    const Pixel own = find(p, p.source, thread);
    for (int i = 0; i < V; i++) sums[i] = 0;
    const Windows depth = windows(p, 0, own.at[0]), height = windows(p, 1, own.at[1]), width = windows(p, 2, own.at[2]);
    for (Place d = depth.first; d < depth.end; d++) {
        for (Place h = height.first; h < height.end; h++) {
            for (Place w = width.first; w < width.end; w++) {
                const u64 at = vector(p, p.target, own, d, h, w);
#if defined(MAX_POOL_PUT)
                const Place across = tap(p, 2, w, own.at[2]), down = tap(p, 1, h, own.at[1]);
                const Place in = tap(p, 0, d, own.at[0]);
                if (across < 0 || down < 0 || in < 0) continue;
                const Tap number = (in * (Place)p.kernel[1] + down) * (Place)p.kernel[2] + across;
                const Taps taps = ((const Taps*)p.taps)[at];
                const Values x = image[at];
                for (int i = 0; i < V; i++)
                    if (taps.of[i] == number) sums[i] += widen(x.of[i]);
#else
                const C count = (C)((i64)window(p, 0, d).count * window(p, 1, h).count * window(p, 2, w).count);
                const Values x = image[at];
                for (int i = 0; i < V; i++) sums[i] += widen(x.of[i]) / count;
#endif
            }
        }
    }
    Values y;
    for (int i = 0; i < V; i++) y.of[i] = cast<T>(sums[i]);
    ((Values*)p.out)[thread] = y;
#endif
}
