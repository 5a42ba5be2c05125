// A tensor that autograd has saved.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "tensor.h"

namespace tenure {

class Saved {
public:
  /// Saves the tensor whole; or without its bytes, whose storage is then passed to restored().
  Saved(const at::Tensor &tensor, bool is_without_bytes);

  /// Returns PyTorch's error message if the tensor was written to since. PyTorch leaves this check to hooks where there
  /// are some.
  std::optional<std::string> modified() const;

  at::Tensor restored(c10::Storage storage) const;

private:
  struct Held {
    Layout layout;
    /// An empty tensor that shares its version counter with the saved one.
    at::Tensor writes;
  };

  std::variant<at::Tensor, Held> what_;
  /// The version at the time of saving. None for inference tensors, which have no version.
  std::optional<int64_t> version_;
};

/// Returns a name for a tensor in errors.
std::string name_of(const at::Tensor &tensor);

} // namespace tenure
