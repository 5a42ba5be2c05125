// Tenure's table of functions, and helpers for its calls and callbacks.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include "tenure_torch.h"

namespace tenure {

/// Tenure's functions. Set before the allocator is created.
extern const tenure_torch_api *api;

/// The exception that a callback from Tenure threw on this thread. No exception may pass through Tenure.
std::exception_ptr &thrown();

/// Whether any callback has ever thrown, on any thread.
extern std::atomic<bool> any_thrown;

/// Calls a callback for Tenure. If it throws, keeps the exception for `fail` and returns `otherwise`.
template <typename Callback, typename Result> Result shielded(Callback callback, Result otherwise) noexcept {
  try {
    return callback();
  } catch (...) {
    thrown() = std::current_exception();
    any_thrown = true;
    return otherwise;
  }
}

template <typename Callback> void shielded(Callback callback) noexcept {
  const auto call = [&] { return callback(), true; };
  shielded(call, false);
}

/// Calls a callback while Tenure frees memory, where an exception cannot be reported: warns with `what` instead.
template <typename Callback> void warned(const char *what, Callback callback) noexcept {
  try {
    callback();
  } catch (const std::exception &error) {
    TORCH_WARN(what, ": ", error.what());
  } catch (...) {
    TORCH_WARN(what);
  }
}

/// Throws the exception of a callback, or else the one that PyTorch uses for `status`.
[[noreturn]] void fail(tenure_status status);

inline void check(tenure_status status) {
  if (C10_UNLIKELY(status != TENURE_OK))
    fail(status);
}

/// Checks a call that made callbacks: an exception of theirs counts although the call itself succeeded.
inline void check_told(tenure_status status) {
  if (C10_UNLIKELY(status != TENURE_OK || (any_thrown.load(std::memory_order_relaxed) && thrown() != nullptr)))
    fail(status);
}

inline constexpr tenure_object kNothing{nullptr, nullptr};

/// Hands `value` over to Tenure.
template <typename T> tenure_object hand_over(T value) {
  return {new T(std::move(value)), [](void *pointer) { delete static_cast<T *>(pointer); }};
}

template <typename T> T &value_of(void *pointer) { return *static_cast<T *>(pointer); }

} // namespace tenure
