// Tensors and their storages.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

#include "tenure_operations.h"

namespace tenure {

/// The dispatch key at which recorders see operations: between autograd and the kernels. PyTorch does not use it
/// otherwise.
constexpr auto kKey = c10::DispatchKey::Fake;

/// Returns the storage of a tensor, with its version.
tenure_bytes bytes_of(const at::Tensor &tensor);

/// Returns whether a tensor is no more than bytes in a storage.
bool is_plain(const at::Tensor &tensor);

/// The layout of a tensor in its storage.
struct Layout {
  caffe2::TypeMeta dtype;
  int64_t offset;
  std::vector<int64_t> sizes, strides;

  static Layout by(const at::Tensor &tensor);
  /// Compares layouts. Ignores strides of dimensions with at most one element.
  bool operator==(const Layout &other) const;
  /// Returns a new tensor with this layout on a storage.
  at::Tensor of(c10::Storage storage) const;
  /// Returns a new tensor with this layout, which covers its storage, and elements that are not set.
  at::Tensor unfilled(c10::Device device) const;
  /// Returns a tensor with this layout and no memory.
  at::Tensor without_bytes(c10::Device device) const;
};

/// Returns a tensor with the same bytes and versions. It has no autograd history, and can be freed without the GIL.
at::Tensor alias_of(const at::Tensor &tensor);

/// Returns a copy of a tensor and its whole storage. It has no autograd history, and the copy is not recorded.
at::Tensor copy_of(const at::Tensor &tensor);

/// Returns an empty tensor that shares the version counter of another.
at::Tensor counter_of(const at::Tensor &tensor);

/// Returns this thread's current stream on a device, and its handle in the driver: null for the CPU.
c10::Stream stream_of(c10::Device device);
void *handle_of(c10::Stream stream);

} // namespace tenure
