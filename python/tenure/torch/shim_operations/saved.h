// A tensor that autograd has saved.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "tensor.h"

namespace tenure {

class Saved {
public:
  /// As it is; or without its bytes, for which a storage is to be had when it is needed.
  Saved(const at::Tensor &tensor, bool is_without_bytes);

  /// PyTorch's own words for what was written to since, which it leaves to hooks where there are some.
  std::optional<std::string> modified() const;

  at::Tensor restored(c10::Storage storage) const;

private:
  struct Held {
    Layout layout;
    /// An empty tensor that counts writes together with the one that was saved.
    at::Tensor writes;
  };

  std::variant<at::Tensor, Held> what_;
  /// None if nobody counts.
  std::optional<int64_t> version_;
};

/// What to call a tensor in an error.
std::string name_of(const at::Tensor &tensor);

} // namespace tenure
