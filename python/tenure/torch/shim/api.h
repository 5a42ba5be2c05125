// Tenure's functions, as the shim calls them.
#pragma once

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

#include "tenure_torch.h"

namespace tenure {

/// Tenure's functions. Set before the allocator exists.
extern const tenure_torch_api *api;

/// Throws what a failed call is in PyTorch.
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
