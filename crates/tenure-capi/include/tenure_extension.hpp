// Extensions, for C++17: functions that Python calls.
//
//     #include <tenure_extension.hpp>
//
//     using tenure::Tensor;
//
//     Tensor scaled(const Tensor &x, double factor) { return x * factor; }
//
//     TENURE_EXTENSION(module) { module.def("scaled", scaled, "Returns x times a factor."); }
//
// Parameters and results may be Tensor, std::vector<Tensor>, bool, integers, floating-point numbers, std::string, DType,
// std::vector<int64_t>, std::optional of these; parameters also Device; results also void, std::tuple and std::pair. An
// exception becomes one of Python, with the same message.
#ifndef TENURE_EXTENSION_HPP
#define TENURE_EXTENSION_HPP

#include <functional>
#include <type_traits>

#include "tenure.hpp"
#include "tenure_extension.h"

namespace tenure {
namespace detail {

/// Converts arguments to a C++ type and results of this type. `is` says whether an argument is of the type.
template <typename T, typename = void> struct Convert;

template <> struct Convert<Tensor> {
    static std::string name() { return "Tensor"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_TENSOR; }
    static Tensor from(const tenure_value &value) {
        tenure_tensor *handle = nullptr;
        check(tenure_tensor_share(value.as.tensor, &handle));
        return Tensor::adopt(handle);
    }
    static tenure_value to(Tensor tensor) {
        tenure_value value = tenure_of(tensor.handle());
        tensor.release();
        return value;
    }
};

template <> struct Convert<bool> {
    static std::string name() { return "bool"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_BOOL; }
    static bool from(const tenure_value &value) { return value.as.boolean; }
    static tenure_value to(bool boolean) { return tenure_bool(boolean); }
};

template <typename T> struct Convert<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
    static std::string name() { return "int"; }
    static bool is(const tenure_value &value) {
        if (value.type != TENURE_TYPE_INT)
            return false;
        if (std::is_unsigned_v<T> && value.as.integer < 0)
            return false;
        return static_cast<int64_t>(static_cast<T>(value.as.integer)) == value.as.integer;
    }
    static T from(const tenure_value &value) { return static_cast<T>(value.as.integer); }
    static tenure_value to(T integer) { return Value(integer).value(); }
};

template <typename T> struct Convert<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static std::string name() { return "float"; }
    static bool is(const tenure_value &value) {
        return value.type == TENURE_TYPE_FLOAT || value.type == TENURE_TYPE_INT;
    }
    static T from(const tenure_value &value) {
        return static_cast<T>(value.type == TENURE_TYPE_INT ? static_cast<double>(value.as.integer) : value.as.number);
    }
    static tenure_value to(T number) { return tenure_float(number); }
};

template <> struct Convert<std::string> {
    static std::string name() { return "str"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_TEXT; }
    static std::string from(const tenure_value &value) { return value.as.text; }
    static tenure_value to(const std::string &text) {
        if (text.find('\0') != std::string::npos)
            throw Error("a text that is returned must have no zero in it");
        return tenure_owned_text(text.c_str());
    }
};

template <> struct Convert<DType> {
    static std::string name() { return "dtype"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_DTYPE; }
    static DType from(const tenure_value &value) { return static_cast<DType>(value.as.dtype); }
    static tenure_value to(DType dtype) { return tenure_dtype_value(static_cast<int>(dtype)); }
};

template <> struct Convert<Device> {
    static std::string name() { return "device"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_DEVICE; }
    static Device from(const tenure_value &value) { return Device{value.as.device}; }
};

template <typename T>
struct Convert<T, std::enable_if_t<std::is_same_v<T, std::vector<int64_t>> || std::is_same_v<T, Ints>>> {
    static std::string name() { return "list[int]"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_INTS; }
    static T from(const tenure_value &value) {
        return T(value.as.integers, value.as.integers + value.count);
    }
    static tenure_value to(const T &integers) {
        std::vector<tenure_value> values;
        for (int64_t integer : integers)
            values.push_back(tenure_int(integer));
        return tenure_owned_tuple(values.data(), values.size());
    }
};

template <> struct Convert<Tensors> {
    static std::string name() { return "list[Tensor]"; }
    static bool is(const tenure_value &value) {
        // An empty list has no type of its elements.
        return value.type == TENURE_TYPE_TENSORS || (value.type == TENURE_TYPE_INTS && value.count == 0);
    }
    static Tensors from(const tenure_value &value) {
        Tensors tensors;
        for (size_t index = 0; index < value.count; index++)
            tensors.push_back(Convert<Tensor>::from(tenure_of(value.as.tensors[index])));
        return tensors;
    }
    static tenure_value to(Tensors tensors) {
        for (const Tensor &tensor : tensors)
            if (!tensor.defined())
                throw Error("a list of results has a tensor that is none");
        std::vector<tenure_tensor *> handles;
        for (Tensor &tensor : tensors)
            handles.push_back(tensor.release());
        return tenure_owned_tensors(handles.data(), handles.size());
    }
};

template <typename T> struct Convert<std::optional<T>> {
    static std::string name() { return Convert<T>::name() + " | None"; }
    static bool is(const tenure_value &value) { return value.type == TENURE_TYPE_NONE || Convert<T>::is(value); }
    static std::optional<T> from(const tenure_value &value) {
        return value.type == TENURE_TYPE_NONE ? std::nullopt : std::optional<T>(Convert<T>::from(value));
    }
    static tenure_value to(std::optional<T> given) {
        return given ? Convert<T>::to(std::move(*given)) : tenure_none();
    }
};

template <typename... T> struct Convert<std::tuple<T...>> {
    static std::string name() {
        std::string names;
        ((names += (names.empty() ? "" : ", ") + Convert<T>::name()), ...);
        return "tuple[" + names + "]";
    }
    static tenure_value to(std::tuple<T...> given) {
        std::array<tenure_value, sizeof...(T)> values{};
        size_t count = 0;
        try {
            std::apply([&](T &...each) { ((values[count] = Convert<T>::to(std::move(each)), count++), ...); }, given);
        } catch (...) {
            for (tenure_value &value : values)
                tenure_value_free(&value);
            throw;
        }
        return tenure_owned_tuple(values.data(), count);
    }
};

template <typename A, typename B> struct Convert<std::pair<A, B>> {
    static std::string name() { return Convert<std::tuple<A, B>>::name(); }
    static tenure_value to(std::pair<A, B> given) {
        return Convert<std::tuple<A, B>>::to({std::move(given.first), std::move(given.second)});
    }
};

template <> struct Convert<void> {
    static std::string name() { return "None"; }
};

template <typename T> using Plain = std::remove_cv_t<std::remove_reference_t<T>>;

/// A function with the code that converts its arguments and its result.
template <typename R, typename... A> struct Bound {
    static_assert(((!std::is_lvalue_reference_v<A> || std::is_const_v<std::remove_reference_t<A>>) && ...),
                  "a parameter of a function for Python is a value or a const reference");

    std::string name;
    std::function<R(A...)> function;

    static tenure_status call(void *context, const tenure_value *arguments, size_t count, tenure_value *result) {
        try {
            static_cast<const Bound *>(context)->run(arguments, count, result, std::index_sequence_for<A...>());
            return TENURE_OK;
        } catch (const Error &error) {
            return tenure_fail(error.status() == TENURE_WRONG_TYPE ? TENURE_WRONG_TYPE : TENURE_INVALID, error.what());
        } catch (const std::exception &error) {
            return tenure_fail(TENURE_INVALID, error.what());
        } catch (...) {
            return tenure_fail(TENURE_INVALID, "the function threw something other than a std::exception");
        }
    }

    std::string signature() const {
        std::string names;
        ((names += (names.empty() ? "" : ", ") + Convert<Plain<A>>::name()), ...);
        return name + "(" + names + ") -> " + Convert<Plain<R>>::name();
    }

  private:
    template <size_t... indices>
    void run(const tenure_value *arguments, size_t count, tenure_value *result,
             std::index_sequence<indices...>) const {
        if (count != sizeof...(A))
            throw Error(signature() + ": takes " + std::to_string(sizeof...(A)) + " arguments, got " +
                            std::to_string(count),
                        TENURE_WRONG_TYPE);
        (void)arguments;
        (check_type<Plain<A>>(arguments[indices], indices), ...);
        if constexpr (std::is_void_v<R>) {
            function(Convert<Plain<A>>::from(arguments[indices])...);
            *result = tenure_none();
        } else {
            *result = Convert<Plain<R>>::to(function(Convert<Plain<A>>::from(arguments[indices])...));
        }
    }

    template <typename T> void check_type(const tenure_value &value, size_t index) const {
        if (!Convert<T>::is(value))
            throw Error(signature() + ": argument " + std::to_string(index + 1) + " must be " + Convert<T>::name(),
                        TENURE_WRONG_TYPE);
    }
};

} // namespace detail

/// The functions of an extension.
class Module {
  public:
    /// Adds a function, of the name that Python calls it by.
    template <typename F> Module &def(const char *name, F &&function, const std::string &doc = "") {
        return add(name, std::function(std::forward<F>(function)), doc);
    }

    /// Adds an operation with an implementation for tensors on the CPU and one for CUDA devices, of the same parameters:
    /// the first tensor's device chooses. nullptr is none. With a formula, the implementations run with gradients
    /// switched off, and the formula's `saved` are the tensors among the arguments, then those of the result.
    template <typename F, typename G>
    Module &def_operation(const char *name, F &&cpu, G &&cuda, Formula formula = nullptr, const std::string &doc = "") {
        constexpr bool has_cpu = !std::is_same_v<std::decay_t<F>, std::nullptr_t>;
        constexpr bool has_cuda = !std::is_same_v<std::decay_t<G>, std::nullptr_t>;
        static_assert(has_cpu || has_cuda, "an operation needs an implementation");
        // All of it lives as long as the process, as the library does.
        auto *operation = new tenure_operation{};
        std::string signature;
        if constexpr (has_cuda)
            operation->cuda = bind(name, std::function(std::forward<G>(cuda)), signature);
        if constexpr (has_cpu)
            operation->cpu = bind(name, std::function(std::forward<F>(cpu)), signature);
        if (formula != nullptr) {
            operation->formula = detail::call_formula;
            operation->formula_context = new Formula(std::move(formula));
        }
        described_.push_back({name, signature + (doc.empty() ? "" : "\n\n" + doc), call_operation, operation});
        operation->name = (new std::string(name))->c_str();
        return *this;
    }

    /// Returns what the extension's library offers. It is called once.
    const tenure_extension *entry() {
        for (const Described &each : described_)
            functions_.push_back({each.name.c_str(), each.doc.c_str(), each.call, each.context});
        extension_ = {TENURE_ABI, functions_.size(), functions_.data()};
        return &extension_;
    }

  private:
    struct Described {
        std::string name;
        std::string doc;
        tenure_status (*call)(void *, const tenure_value *, size_t, tenure_value *);
        void *context;
    };

    template <typename R, typename... A>
    Module &add(const char *name, std::function<R(A...)> function, const std::string &doc) {
        std::string text;
        tenure_implementation bound = bind(name, std::move(function), text);
        text += doc.empty() ? "" : "\n\n" + doc;
        described_.push_back({name, text, bound.call, bound.context});
        return *this;
    }

    /// Returns a function with the code that converts its arguments, and its signature.
    template <typename R, typename... A>
    static tenure_implementation bind(const char *name, std::function<R(A...)> function, std::string &signature) {
        // It lives as long as the process, as the library does.
        auto *bound = new detail::Bound<R, A...>{name, std::move(function)};
        signature = bound->signature();
        return {detail::Bound<R, A...>::call, bound};
    }

    static tenure_status call_operation(void *operation, const tenure_value *arguments, size_t count,
                                        tenure_value *result) {
        return tenure_operation_call(static_cast<const tenure_operation *>(operation), arguments, count, result);
    }

    std::vector<Described> described_;
    std::vector<tenure_function> functions_;
    tenure_extension extension_{};
};

namespace detail {
/// Returns the entry of an extension whose functions `define` adds; NULL if it throws.
inline const tenure_extension *entry(void (*define)(Module &)) {
    try {
        auto *module = new Module();
        define(*module);
        return module->entry();
    } catch (const std::exception &error) {
        tenure_fail(TENURE_INVALID, error.what());
    } catch (...) {
        tenure_fail(TENURE_INVALID, "the extension threw something other than a std::exception");
    }
    return nullptr;
}
} // namespace detail

} // namespace tenure

/// Defines an extension: the block that follows adds functions to the `module`.
#define TENURE_EXTENSION(module)                                                                                       \
    static void tenure_extension_define(tenure::Module &module);                                                       \
    const tenure_extension *tenure_extension_entry(void) {                                                             \
        static const tenure_extension *const entry = tenure::detail::entry(tenure_extension_define);                   \
        return entry;                                                                                                  \
    }                                                                                                                  \
    static void tenure_extension_define(tenure::Module &module)

#endif
