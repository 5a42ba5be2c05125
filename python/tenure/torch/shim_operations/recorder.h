// Tells of what threads make on a device.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <memory>
#include <mutex>

#include "call.h"

namespace tenure {

class Recorder {
public:
  /// Throws if something else stands between autograd and kernels.
  Recorder(c10::Device device, tenure_listener listener);
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;

  /// From now on these addresses stay, and nothing was made yet.
  void begin(const uintptr_t *staying, size_t count);

  /// This thread tells of what it makes; or does not, for null.
  static void listen(std::shared_ptr<Recorder> recorder);

  /// Calls an operation by the kernels below, and tells of it.
  void call(const Kind &kind, const c10::OperatorHandle &operation, c10::DispatchKeySet below,
            torch::jit::Stack *stack);

  /// What there is to know of a tensor that is saved.
  tenure_look look(const at::Tensor &tensor) const;

private:
  void tell(const Kind &kind, c10::Stream stream, torch::jit::Stack given, c10::ArrayRef<c10::IValue> returned);

  /// How what was made is made again; null if nobody knows.
  std::unique_ptr<Call> noted(const Kind &kind, c10::Stream stream, torch::jit::Stack given,
                              std::vector<std::pair<size_t, Layout>> results, std::vector<tenure_bytes> &made);

  const tenure_listener listener_;
  /// For as long as it lives.
  const std::shared_ptr<void> user_;
  mutable std::mutex mutex_;
  Known known_;
};

/// Where recorders hear of operations: between autograd and kernels. PyTorch has no use for it.
constexpr auto kKey = c10::DispatchKey::Fake;

} // namespace tenure
