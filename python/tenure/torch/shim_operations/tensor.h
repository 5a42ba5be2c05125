// Tensors, and where their bytes are.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

#include "tenure_operations.h"

namespace tenure {

/// Where recorders hear of operations: between autograd and kernels. PyTorch has no use for it.
constexpr auto kKey = c10::DispatchKey::Fake;

/// Where a tensor's bytes are.
tenure_bytes bytes_of(const at::Tensor &tensor);

/// Whether a tensor is all that it seems to be: bytes in a storage.
bool is_plain(const at::Tensor &tensor);

/// How a tensor lies in its storage.
struct Layout {
  caffe2::TypeMeta dtype;
  int64_t offset;
  std::vector<int64_t> sizes, strides;

  static Layout by(const at::Tensor &tensor);
  /// But for strides along which there is nothing.
  bool operator==(const Layout &other) const;
  /// A tensor that lies so, never written to.
  at::Tensor of(c10::Storage storage) const;
};

/// The same bytes and versions, in a tensor that no operation has made, and that may be freed without Python's lock.
at::Tensor alias_of(const at::Tensor &tensor);

/// The same numbers in memory of its own, of all of the storage. No operation has made it, and nobody hears of it.
at::Tensor copy_of(const at::Tensor &tensor);

/// One that has the versions of another, and none of its bytes.
at::Tensor counter_of(const at::Tensor &tensor);

/// Where this thread computes on a device, and what that is to its driver: null for the CPU.
c10::Stream stream_of(c10::Device device);
void *handle_of(c10::Stream stream);

} // namespace tenure
