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

/// What a callback of PyTorch's returns to Tenure; `otherwise` if it throws, which `fail` then throws again.
template <typename Callback, typename Result> Result shielded(Callback callback, Result otherwise) noexcept {
  try {
    return callback();
  } catch (...) {
    thrown() = std::current_exception();
    any_thrown = true;
    return otherwise;
  }
}

/// Throws what a callback threw, or else what a failed call is in PyTorch.
[[noreturn]] void fail(tenure_status status);

inline void check(tenure_status status) {
  if (C10_UNLIKELY(status != TENURE_OK))
    fail(status);
}

inline constexpr tenure_object kNothing{nullptr, nullptr};

/// Hands `value` over to Tenure.
template <typename T> tenure_object hand_over(T value) {
  return {new T(std::move(value)), [](void *pointer) { delete static_cast<T *>(pointer); }};
}

template <typename T> T &value_of(void *pointer) { return *static_cast<T *>(pointer); }

} // namespace tenure
