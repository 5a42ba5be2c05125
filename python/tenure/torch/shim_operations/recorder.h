// Tells of what threads make on a device.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <memory>

#include "call.h"

namespace tenure {

class Recorder {
public:
  /// Throws if something else stands between autograd and kernels.
  Recorder(c10::Device device, tenure_listener listener);
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;

  /// From now on these addresses stay, and nothing was made yet.
  void begin(const uintptr_t *staying, size_t count) { known_.begin(staying, count); }

  /// This thread tells of what it makes; or does not, for null.
  static void listen(std::shared_ptr<Recorder> recorder);

  /// Calls an operation by the kernels below, and tells of it.
  void call(const Kind &kind, const c10::OperatorHandle &operation, c10::DispatchKeySet below,
            torch::jit::Stack *stack);

  /// What there is to know of a tensor that is saved.
  tenure_look look(const at::Tensor &tensor) const;

private:
  void tell(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
            c10::ArrayRef<c10::IValue> returned);

  /// How what was returned is made again, and what of it was made; null if nobody knows how.
  std::unique_ptr<Call> noted(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                              c10::ArrayRef<c10::IValue> returned, std::vector<tenure_bytes> &made);

  const tenure_listener listener_;
  /// For as long as it lives.
  const std::shared_ptr<void> user_;
  Known known_;
};

} // namespace tenure
