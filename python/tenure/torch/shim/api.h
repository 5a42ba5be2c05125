// Tenure's functions, as the shim calls them.
#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include "tenure_torch.h"

namespace tenure {

/// Tenure's functions. Set before the allocator exists.
extern const tenure_torch_api *api;

/// What a callback threw that Tenure called on this thread: nothing may be thrown through Tenure.
std::exception_ptr &thrown();

/// Whether any callback ever threw, on whatever thread.
extern std::atomic<bool> any_thrown;

/// What a callback returns to Tenure; `otherwise` if it throws, which `fail` then throws again.
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

/// A callback that nobody can be told of if it throws, since Tenure was about to free something: a warning says `what`.
template <typename Callback> void warned(const char *what, Callback callback) noexcept {
  try {
    callback();
  } catch (const std::exception &error) {
    TORCH_WARN(what, ": ", error.what());
  } catch (...) {
    TORCH_WARN(what);
  }
}

/// Throws what a callback threw, or else what a failed call is in PyTorch.
[[noreturn]] void fail(tenure_status status);

inline void check(tenure_status status) {
  if (C10_UNLIKELY(status != TENURE_OK))
    fail(status);
}

/// The same for a call that called back: what was thrown there counts although the call did not fail.
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
