// Tenure's tensors, for C++17: tenure_tensor.h with owners, exceptions and overloads.
//
// The names are PyTorch's: `tenure::matmul(a, b)`, `a.sum({0}, /*keepdim=*/true)`, `a + 2 * b`. Every operation is a
// function, and most are methods of their first parameter. A call that fails throws tenure::Error.
#ifndef TENURE_HPP
#define TENURE_HPP

#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tenure_tensor.h"

namespace tenure {

/// What a call that fails throws.
class Error : public std::runtime_error {
  public:
    explicit Error(const std::string &message, tenure_status status = TENURE_INVALID)
        : std::runtime_error(message), status_(status) {}

    /// Returns the kind of failure.
    tenure_status status() const { return status_; }

  private:
    tenure_status status_;
};

namespace detail {
/// Throws the last error of this thread unless a call has succeeded.
inline void check(tenure_status status) {
    if (status != TENURE_OK)
        throw Error(tenure_last_error(), status);
}
} // namespace detail

/// The type of a tensor's elements.
enum class DType : int {
    Bool = TENURE_BOOL,
    Uint8 = TENURE_UINT8,
    Int8 = TENURE_INT8,
    Int16 = TENURE_INT16,
    Int32 = TENURE_INT32,
    Int64 = TENURE_INT64,
    Float16 = TENURE_FLOAT16,
    Bfloat16 = TENURE_BFLOAT16,
    Float32 = TENURE_FLOAT32,
    Float64 = TENURE_FLOAT64,
    Uint16 = TENURE_UINT16,
    Uint32 = TENURE_UINT32,
    Uint64 = TENURE_UINT64
};

/// The dtype of a C++ type.
template <typename T> struct dtype_of;
template <> struct dtype_of<bool> { static constexpr DType value = DType::Bool; };
template <> struct dtype_of<uint8_t> { static constexpr DType value = DType::Uint8; };
template <> struct dtype_of<uint16_t> { static constexpr DType value = DType::Uint16; };
template <> struct dtype_of<uint32_t> { static constexpr DType value = DType::Uint32; };
template <> struct dtype_of<uint64_t> { static constexpr DType value = DType::Uint64; };
template <> struct dtype_of<int8_t> { static constexpr DType value = DType::Int8; };
template <> struct dtype_of<int16_t> { static constexpr DType value = DType::Int16; };
template <> struct dtype_of<int32_t> { static constexpr DType value = DType::Int32; };
template <> struct dtype_of<int64_t> { static constexpr DType value = DType::Int64; };
template <> struct dtype_of<float> { static constexpr DType value = DType::Float32; };
template <> struct dtype_of<double> { static constexpr DType value = DType::Float64; };

/// The CPU or a CUDA device.
struct Device {
    int number = TENURE_CPU;

    /// Returns the CUDA device of a number.
    static Device cuda(int number = 0) { return Device{number}; }
    bool is_cpu() const { return number == TENURE_CPU; }
    bool is_cuda() const { return number >= 0; }
    bool operator==(Device other) const { return number == other.number; }
    bool operator!=(Device other) const { return number != other.number; }
};

/// A list of integers. One integer is a list of one.
class Ints : public std::vector<int64_t> {
  public:
    using std::vector<int64_t>::vector;
    Ints(int64_t only) : std::vector<int64_t>{only} {}
    Ints(int only) : std::vector<int64_t>{only} {}
    Ints(std::vector<int64_t> integers) : std::vector<int64_t>(std::move(integers)) {}
};

/// A generator of random numbers. `Generator()` is the device's default one.
class Generator {
  public:
    Generator() = default;
    explicit Generator(uint64_t seed) : handle_(tenure_generator_new(seed), tenure_generator_free) {}
    const tenure_generator *handle() const { return handle_.get(); }

  private:
    std::shared_ptr<tenure_generator> handle_;
};

class Tensor;
using Tensors = std::vector<Tensor>;

/// A tensor or a number, as an argument. It refers to the tensor. `Value()` is none.
class Value {
  public:
    Value() : value_(tenure_none()) {}
    Value(const Tensor &tensor);
    template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0> Value(T number) {
        if constexpr (std::is_same_v<T, bool>)
            value_ = tenure_bool(number);
        else if constexpr (std::is_floating_point_v<T>)
            value_ = tenure_float(static_cast<double>(number));
        else if (static_cast<uint64_t>(number) > INT64_MAX && number > 0)
            throw Error("an integer must be less than 2^63");
        else
            value_ = tenure_int(static_cast<int64_t>(number));
    }
    /// A text or an address is no number.
    Value(const void *) = delete;

    tenure_value value() const { return value_; }

  private:
    tenure_value value_;
};

namespace detail {

/// An argument of a call: a value, and the handles that a list of tensors needs.
struct Argument {
    tenure_value value{};
    std::vector<const tenure_tensor *> handles;

    Argument(const Tensor &tensor);
    Argument(const Tensors &tensors);
    Argument(Value given) : value(given.value()) {}
    Argument(int64_t integer) : value(tenure_int(integer)) {}
    Argument(std::optional<int64_t> integer) : value(integer ? tenure_int(*integer) : tenure_none()) {}
    Argument(double number) : value(tenure_float(number)) {}
    Argument(std::optional<double> number) : value(number ? tenure_float(*number) : tenure_none()) {}
    Argument(bool boolean) : value(tenure_bool(boolean)) {}
    Argument(const char *text) : value(tenure_text(text)) {}
    Argument(const Ints &integers) : value(tenure_ints(integers.data(), integers.size())) {}
    Argument(DType dtype) : value(tenure_dtype_value(static_cast<int>(dtype))) {}
    Argument(std::optional<DType> dtype)
        : value(dtype ? tenure_dtype_value(static_cast<int>(*dtype)) : tenure_none()) {}
    Argument(Device device) : value(tenure_device_value(device.number)) {}
    Argument(std::optional<Device> device) : value(device ? tenure_device_value(device->number) : tenure_none()) {}
    Argument(const Generator &generator) : value(tenure_generator_value(generator.handle())) {}
};

/// The result of a call.
class Output {
  public:
    explicit Output(tenure_value value) : value_(value) {}
    Output(const Output &) = delete;
    Output &operator=(const Output &) = delete;
    ~Output() { tenure_value_free(&value_); }

    bool boolean() const { return value_.as.boolean; }
    Tensor tensor();
    Tensors tensors();

    /// Returns the tensors of a result of `count` tensors.
    template <size_t count> auto tuple() { return as_tuple(tensors(), std::make_index_sequence<count>()); }

  private:
    template <typename List, size_t... indices>
    static auto as_tuple(List tensors, std::index_sequence<indices...>) {
        return std::make_tuple(std::move(tensors[indices])...);
    }

    tenure_value value_;
};

/// Calls an operation.
inline Output call(const char *operation, std::initializer_list<Argument> arguments) {
    std::array<tenure_value, 16> values;
    if (arguments.size() > values.size())
        throw Error("an operation has at most 16 arguments");
    size_t count = 0;
    for (const Argument &argument : arguments)
        values[count++] = argument.value;
    tenure_value result{};
    check(tenure_call(operation, values.data(), count, &result));
    return Output(result);
}

} // namespace detail

/// A tensor. A copy is another handle of the same tensor. `Tensor()` is none.
class Tensor {
  public:
    Tensor() noexcept : handle_(nullptr) {}
    Tensor(const Tensor &other) : handle_(nullptr) {
        if (other.handle_ != nullptr)
            detail::check(tenure_tensor_share(other.handle_, &handle_));
    }
    Tensor(Tensor &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Tensor &operator=(Tensor other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Tensor() { tenure_tensor_free(handle_); }

    /// Owns a handle.
    static Tensor adopt(tenure_tensor *handle) {
        Tensor tensor;
        tensor.handle_ = handle;
        return tensor;
    }

    /// Gives the handle up to the caller, and leaves none.
    tenure_tensor *release() { return std::exchange(handle_, nullptr); }

    /// Makes a tensor of elements, whose last dimension is dense.
    template <typename T>
    static Tensor from(const std::vector<T> &elements, const Ints &sizes, Device device = Device()) {
        int64_t count = 1;
        for (int64_t size : sizes)
            count *= size;
        if (count != static_cast<int64_t>(elements.size()))
            throw Error("the elements do not fill the sizes: there are " + std::to_string(elements.size()) + " for " +
                        std::to_string(count));
        Tensor tensor;
        auto make = [&](const void *data) {
            detail::check(tenure_tensor_from(data, sizes.data(), sizes.size(), static_cast<int>(dtype_of<T>::value),
                                             device.number, &tensor.handle_));
        };
        if constexpr (std::is_same_v<T, bool>) {
            // A vector of bool has bits.
            const std::vector<uint8_t> bytes(elements.begin(), elements.end());
            make(bytes.data());
        } else {
            make(elements.data());
        }
        return tensor;
    }

    /// Returns a copy of the elements, with the last dimension dense.
    template <typename T> std::vector<T> to_vector() const {
        if (dtype() != dtype_of<T>::value)
            throw Error("the elements are of another dtype: convert them by to() first");
        using Element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
        std::vector<Element> elements(static_cast<size_t>(numel()));
        detail::check(tenure_tensor_read(handle(), elements.data(), elements.size() * sizeof(Element)));
        return std::vector<T>(elements.begin(), elements.end());
    }

    const tenure_tensor *handle() const { return handle_; }
    bool defined() const { return handle_ != nullptr; }

    int64_t dim() const { return static_cast<int64_t>(tenure_tensor_rank(known())); }
    Ints sizes() const {
        const int64_t *sizes = tenure_tensor_sizes(known());
        return Ints(sizes, sizes + tenure_tensor_rank(handle_));
    }
    Ints strides() const {
        const int64_t *strides = tenure_tensor_strides(known());
        return Ints(strides, strides + tenure_tensor_rank(handle_));
    }
    int64_t size(int64_t dim) const {
        int64_t index = dim < 0 ? dim + this->dim() : dim;
        if (index < 0 || index >= this->dim())
            throw Error("dimension " + std::to_string(dim) + " is out of range for a tensor of " +
                        std::to_string(this->dim()) + " dimensions");
        return tenure_tensor_sizes(handle_)[index];
    }
    int64_t numel() const { return static_cast<int64_t>(tenure_tensor_numel(known())); }
    DType dtype() const { return static_cast<DType>(tenure_tensor_dtype(known())); }
    Device device() const { return Device{tenure_tensor_device(known())}; }
    bool is_contiguous() const { return tenure_tensor_is_contiguous(known()); }

    bool requires_grad() const { return tenure_tensor_requires_grad(known()); }
    Tensor &requires_grad_(bool requires_grad = true) {
        known();
        detail::check(tenure_tensor_set_requires_grad(handle_, requires_grad));
        return *this;
    }
    Tensor grad() const {
        Tensor grad;
        detail::check(tenure_tensor_grad(handle_, &grad.handle_));
        return grad;
    }
    void backward() const { detail::check(tenure_tensor_backward(handle_)); }
    Tensor detach() const {
        Tensor detached;
        detail::check(tenure_tensor_detach(handle_, &detached.handle_));
        return detached;
    }

#include "tenure_methods.hpp"

  private:
    const tenure_tensor *known() const {
        if (handle_ == nullptr)
            throw Error("a tensor is needed, and this is none");
        return handle_;
    }

    tenure_tensor *handle_;
};

inline Value::Value(const Tensor &tensor) : value_(tenure_of(tensor.handle())) {}

namespace detail {

inline Argument::Argument(const Tensor &tensor) : value(tenure_of(tensor.handle())) {}

inline Argument::Argument(const Tensors &tensors) {
    for (const Tensor &tensor : tensors)
        handles.push_back(tensor.handle());
    value = tenure_tensors(handles.data(), handles.size());
}

inline Tensor Output::tensor() {
    value_.type = TENURE_TYPE_NONE;
    return Tensor::adopt(const_cast<tenure_tensor *>(value_.as.tensor));
}

inline Tensors Output::tensors() {
    std::vector<tenure_tensor *> handles(value_.count);
    std::vector<tenure_tensor **> places;
    for (tenure_tensor *&handle : handles)
        places.push_back(&handle);
    tenure_take_tensors(&value_, places.data());
    Tensors tensors;
    for (tenure_tensor *handle : handles)
        tensors.push_back(Tensor::adopt(handle));
    return tensors;
}

} // namespace detail

#include "tenure_operations.hpp"

inline Tensor operator+(const Tensor &left, Value right) { return add(left, right); }
inline Tensor operator-(const Tensor &left, Value right) { return sub(left, right); }
inline Tensor operator*(const Tensor &left, Value right) { return mul(left, right); }
inline Tensor operator/(const Tensor &left, Value right) { return div(left, right); }
inline Tensor operator-(const Tensor &tensor) { return neg(tensor); }

/// Numbers on the left. A template, so that an integer stays one.
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
Tensor operator+(T left, const Tensor &right) {
    return add(right, Value(left));
}
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
Tensor operator-(T left, const Tensor &right) {
    return add(neg(right), Value(left));
}
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
Tensor operator*(T left, const Tensor &right) {
    return mul(right, Value(left));
}
template <typename T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
Tensor operator/(T left, const Tensor &right) {
    return mul(reciprocal(right), Value(left));
}

/// Switches this thread's recording of gradients off, or on, while it lives.
class GradMode {
  public:
    explicit GradMode(bool enabled) { tenure_grad_mode_push(enabled); }
    ~GradMode() { tenure_grad_mode_pop(); }
    GradMode(const GradMode &) = delete;
    GradMode &operator=(const GradMode &) = delete;
};

/// Access to the elements of tensors: while it lives, no other thread writes to those that are read, and none reads or
/// writes those that are written. Until it ends, its own thread begins no other access and calls no operation: these
/// throw an error.
class Access {
  public:
    Access(const Tensors &written, const Tensors &read) {
        std::vector<const tenure_tensor *> writes, reads;
        for (const Tensor &tensor : written)
            writes.push_back(tensor.handle());
        for (const Tensor &tensor : read)
            reads.push_back(tensor.handle());
        detail::check(tenure_access_begin(writes.data(), writes.size(), reads.data(), reads.size(), &access_));
    }
    ~Access() { tenure_access_end(access_); }
    Access(const Access &) = delete;
    Access &operator=(const Access &) = delete;

    /// Returns the address of a tensor's first element.
    template <typename T> T *data(const Tensor &tensor) const {
        if (tensor.dtype() != dtype_of<std::remove_const_t<T>>::value)
            throw Error("the elements are of another dtype: convert them by to() first");
        void *data = nullptr;
        detail::check(tenure_access_data(access_, tensor.handle(), &data));
        return static_cast<T *>(data);
    }

  protected:
    tenure_access *handle() const { return access_; }

  private:
    tenure_access *access_ = nullptr;
};

/// Computes the gradients of an operation's inputs from what was saved and from the gradients of the outputs. A gradient
/// is none where nothing depends on the output, or where the input needs none. Tensors come in `saved`: a formula that
/// captures an output keeps it, and itself, for ever.
using Formula = std::function<Tensors(const Tensors &saved, const Tensors &grads)>;

namespace detail {

/// Calls a formula, which is the context.
inline tenure_status call_formula(void *context, const tenure_tensor *const *kept, size_t kept_count,
                                  const tenure_tensor *const *grads, size_t output_count, tenure_tensor **input_grads,
                                  size_t input_count) {
    try {
        auto shared = [](const tenure_tensor *const *handles, size_t count) {
            Tensors tensors(count);
            for (size_t index = 0; index < count; index++) {
                tenure_tensor *handle = nullptr;
                if (handles[index] != nullptr)
                    detail::check(tenure_tensor_share(handles[index], &handle));
                tensors[index] = Tensor::adopt(handle);
            }
            return tensors;
        };
        Tensors given = (*static_cast<Formula *>(context))(shared(kept, kept_count), shared(grads, output_count));
        if (given.size() != input_count)
            throw Error("the formula has returned " + std::to_string(given.size()) + " gradients for " +
                        std::to_string(input_count) + " inputs");
        for (size_t index = 0; index < input_count; index++)
            input_grads[index] = given[index].release();
        return TENURE_OK;
    } catch (const std::exception &error) {
        return tenure_fail(TENURE_INVALID, error.what());
    } catch (...) {
        return tenure_fail(TENURE_INVALID, "a formula threw something other than a std::exception");
    }
}

} // namespace detail

/// Makes `outputs`, which were computed with gradients switched off, the results of an operation on `inputs`.
inline void attach(const char *name, const Tensors &outputs, const Tensors &inputs, const Tensors &saved,
                   Formula formula) {
    auto handles_of = [](const Tensors &tensors) {
        std::vector<const tenure_tensor *> handles;
        for (const Tensor &tensor : tensors)
            handles.push_back(tensor.handle());
        return handles;
    };
    auto out = handles_of(outputs), in = handles_of(inputs), kept = handles_of(saved);
    detail::check(tenure_attach(name, out.data(), out.size(), in.data(), in.size(), kept.data(), kept.size(),
                                detail::call_formula, new Formula(std::move(formula)),
                                [](void *context) { delete static_cast<Formula *>(context); }));
}

} // namespace tenure

#endif
