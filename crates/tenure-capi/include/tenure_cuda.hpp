// Kernels in CUDA C++, for C++17: launched by name, on the current stream, with the tensors that they read and write.
//
//     // scale.cu
//     extern "C" __global__ void scale(float *out, const float *x, float factor, int n) { ... }
//
//     // scaling.cpp
//     namespace cuda = tenure::cuda;
//     int n = static_cast<int>(x.numel());
//     cuda::kernel("scale").launch((n + 255) / 256, 256, 0, cuda::out(y), cuda::in(x), 2.0f, n);
//
// An argument has the type of the kernel's parameter: 2.0f is a float, and 2.0 a double.
#ifndef TENURE_CUDA_HPP
#define TENURE_CUDA_HPP

#include <cstring>

#include "tenure.hpp"
#include "tenure_cuda.h"

extern "C" {
/// The sources in CUDA C++ that this library was built with, if any: tenure.extension.load() defines it.
extern __attribute__((weak, visibility("hidden"))) const tenure_cuda_program tenure_cuda_own_program;
}

namespace tenure {
namespace cuda {

/// A number of blocks or threads in each direction.
struct Dim3 {
    uint32_t x, y, z;
    template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
    Dim3(T x) : Dim3(static_cast<int64_t>(x), 1) {}
    Dim3(int64_t x, int64_t y, int64_t z = 1) : x(number(x)), y(number(y)), z(number(z)) {}

  private:
    static uint32_t number(int64_t given) {
        if (given < 0 || given > INT32_MAX)
            throw Error("a number of blocks or threads must be from 0 to 2^31 - 1, got " + std::to_string(given));
        return static_cast<uint32_t>(given);
    }
};

/// A tensor that a kernel writes, and may read.
struct Out {
    const Tensor &tensor;
};

/// A tensor that a kernel only reads.
struct In {
    const Tensor &tensor;
};

inline Out out(const Tensor &tensor) { return Out{tensor}; }
inline In in(const Tensor &tensor) { return In{tensor}; }

namespace detail {

using tenure::detail::check;

inline tenure_cuda_argument argument(const Out &out) { return {TENURE_CUDA_WRITE, 0, out.tensor.handle()}; }
inline tenure_cuda_argument argument(const In &in) { return {TENURE_CUDA_READ, 0, in.tensor.handle()}; }
inline tenure_cuda_argument argument(const Tensor &tensor) = delete; // say out(tensor) or in(tensor)
template <typename T> tenure_cuda_argument argument(const T &value) {
    static_assert(std::is_trivially_copyable_v<T>, "an argument of a kernel is out(tensor), in(tensor), a number or a struct");
    return {TENURE_CUDA_BYTES, sizeof(T), &value};
}

/// Converts an argument to the type of a parameter of a function on the CPU.
template <typename T> struct OnCpu {
    static T from(const tenure_cuda_argument &argument, size_t index) {
        if (argument.kind != TENURE_CUDA_BYTES || argument.bytes != sizeof(T))
            throw Error("the kernel's argument " + std::to_string(index + 1) +
                        " is not of the type that its function on the CPU has");
        T value;
        std::memcpy(&value, argument.data, sizeof(T));
        return value;
    }
};

template <> struct OnCpu<Tensor> {
    static Tensor from(const tenure_cuda_argument &argument, size_t index) {
        if (argument.kind == TENURE_CUDA_BYTES)
            throw Error("the kernel's argument " + std::to_string(index + 1) +
                        " is not a tensor, but its function on the CPU takes one");
        tenure_tensor *handle = nullptr;
        check(tenure_tensor_share(static_cast<const tenure_tensor *>(argument.data), &handle));
        return Tensor::adopt(handle);
    }
};

/// A function on the CPU with the code that converts its arguments.
template <typename F> struct BoundOnCpu;
template <typename... A> struct BoundOnCpu<std::function<void(A...)>> {
    std::function<void(A...)> function;

    static tenure_status call(void *context, const tenure_cuda_size *size, const tenure_cuda_argument *arguments,
                              size_t count) {
        (void)size;
        try {
            const auto &self = *static_cast<const BoundOnCpu *>(context);
            if (count != sizeof...(A))
                throw Error("the kernel got " + std::to_string(count) + " arguments, and its function on the CPU has " +
                            std::to_string(sizeof...(A)));
            self.run(arguments, std::index_sequence_for<A...>());
            return TENURE_OK;
        } catch (const std::exception &error) {
            return tenure_fail(TENURE_INVALID, error.what());
        } catch (...) {
            return tenure_fail(TENURE_INVALID, "the kernel's function on the CPU threw something other than a std::exception");
        }
    }

    template <size_t... indices>
    void run(const tenure_cuda_argument *arguments, std::index_sequence<indices...>) const {
        (void)arguments;
        function(OnCpu<std::remove_cv_t<std::remove_reference_t<A>>>::from(arguments[indices], indices)...);
    }
};

template <typename R, typename... A> std::function<void(A...)> without_result(std::function<R(A...)> function) {
    return [function](A... arguments) { function(std::forward<A>(arguments)...); };
}

} // namespace detail

/// A kernel by its name: that of an `extern "C"` kernel, or a C++ expression that names one, such as `scale<float>`.
class Kernel {
  public:
    Kernel(const tenure_cuda_program *program, std::string name) : program_(program), name_(std::move(name)) {
        if (program == nullptr)
            throw Error("there is no kernel " + name_ + ": this extension was built without a source in CUDA (.cu)");
    }

    /// Launches it on this thread's current stream, and does not wait for it. A launch of no blocks does nothing.
    template <typename... A> void launch(Dim3 grid, Dim3 block, uint32_t shared_bytes, const A &...arguments) const {
        const tenure_cuda_size size = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes};
        // The last one is there so that no list is empty.
        const tenure_cuda_argument list[] = {detail::argument(arguments)..., {TENURE_CUDA_BYTES, 0, nullptr}};
        detail::check(tenure_cuda_launch(program_, name_.c_str(), &size, list, sizeof...(A)));
    }

    /// Sets the function that simulated devices, which run no kernels, call instead. It has the kernel's parameters: a
    /// Tensor on the CPU for each tensor, which it writes in place.
    template <typename F> const Kernel &on_cpu(F &&function) const {
        auto bare = detail::without_result(std::function(std::forward<F>(function)));
        // It lives as long as the process, as the library does.
        auto *bound = new detail::BoundOnCpu<decltype(bare)>{std::move(bare)};
        detail::check(tenure_cuda_on_cpu(program_, name_.c_str(), detail::BoundOnCpu<decltype(bare)>::call, bound));
        return *this;
    }

  private:
    const tenure_cuda_program *program_;
    std::string name_;
};

/// Returns a kernel of this extension's sources in CUDA.
inline Kernel kernel(std::string name) { return Kernel(&tenure_cuda_own_program, std::move(name)); }

/// Access to the memory of tensors on a CUDA device for code that launches kernels itself, `<<<..., access.stream<cudaStream_t>()>>>`.
/// What it launches may go on after the access has ended.
class StreamAccess : public Access {
  public:
    StreamAccess(const Tensors &written, const Tensors &read) : Access(written, read) {
        detail::check(tenure_access_stream(handle(), &stream_));
    }

    /// Returns the stream, as `stream<cudaStream_t>()`.
    template <typename Stream> Stream stream() const { return static_cast<Stream>(stream_); }

  private:
    void *stream_ = nullptr;
};

} // namespace cuda
} // namespace tenure

#endif
