// A recorder of the operations that threads run on a device.
#pragma once

#include <c10/core/DispatchKeySet.h>

#include <memory>

#include "call.h"

namespace tenure {

class Recorder {
public:
  /// Throws if another fallback stands between autograd and the kernels already.
  Recorder(c10::Device device, tenure_listener listener);
  Recorder(const Recorder &) = delete;
  Recorder &operator=(const Recorder &) = delete;

  /// Begins a step: storages at these addresses stay, and no results are known yet.
  void begin(const uintptr_t *staying, size_t count) { known_.begin(staying, count); }

  /// Starts the recording of this thread's operations, from the one on before which autograd's sequence number is
  /// `from`; ends it for null. An operation that is a part of another has that one's number.
  static void listen(std::shared_ptr<Recorder> recorder, uint64_t from);

  /// Calls an operation by the kernels below, and reports it.
  void call(const Kind &kind, const c10::OperatorHandle &operation, c10::DispatchKeySet below,
            torch::jit::Stack *stack);

  /// Returns the facts about a tensor that is about to be saved.
  tenure_look look(const at::Tensor &tensor) const;

private:
  /// Returns the state of the generator that an operation is about to draw from, if it can be repeated with it.
  std::optional<at::Generator> state_before(const Kind &kind, const torch::jit::Stack &given) const;

  void tell(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given, std::optional<at::Generator> state,
            c10::ArrayRef<c10::IValue> returned);

  /// Returns the arguments that an operation wrote to, unless it is in place.
  std::vector<tenure_bytes> written_by(const Kind &kind, const torch::jit::Stack &given) const;

  /// Returns the call that repeats an operation, or null if it cannot be repeated. Fills in `made` with the storages of
  /// the results.
  std::unique_ptr<Call> noted(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                              std::optional<at::Generator> state, c10::ArrayRef<c10::IValue> returned,
                              std::vector<tenure_bytes> &made);

  const tenure_listener listener_;
  /// The listener's user data. Its drop function is called when the recorder is destroyed.
  const std::shared_ptr<void> user_;
  Known known_;
};

} // namespace tenure
