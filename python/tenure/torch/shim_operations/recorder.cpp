#include "recorder.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <utility>

namespace tenure {

namespace {

/// The recorder of this thread's operations; null for none.
thread_local std::shared_ptr<Recorder> listening;

/// The sequence number from which on it records them.
thread_local uint64_t listening_from = 0;

bool is_heard() { return listening != nullptr && at::sequence_number::peek() >= listening_from; }

void called(const c10::OperatorHandle &operation, c10::DispatchKeySet keys, torch::jit::Stack *stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const Kind *kind = is_heard() ? kind_of(operation) : nullptr;
  const c10::impl::ExcludeDispatchKeyGuard inside(kKey);
  if (kind == nullptr)
    operation.redispatchBoxed(below, stack);
  else
    listening->call(*kind, operation, below, stack);
}

/// Registers the fallback for the shim's dispatch key, once.
void stand_between() {
  static const bool stands = [] {
    TORCH_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kKey),
                "something else stands between autograd and kernels already");
    // Never destroyed: kernels are called until the process ends.
    static auto &library = *new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&called>());
    return true;
  }();
  static_cast<void>(stands);
}

} // namespace

Recorder::Recorder(c10::Device device, tenure_listener listener)
    : listener_(listener), user_(listener.user, listener.drop), known_(device) {
  stand_between();
}

void Recorder::listen(std::shared_ptr<Recorder> recorder, uint64_t from) {
  listening = std::move(recorder);
  listening_from = from;
  c10::impl::tls_set_dispatch_key_included(kKey, listening != nullptr);
}

void Recorder::call(const Kind &kind, const c10::OperatorHandle &operation, c10::DispatchKeySet below,
                    torch::jit::Stack *stack) {
  const auto stream = stream_of(known_.device);
  if (!listener_.wishes(listener_.user, handle_of(stream))) {
    operation.redispatchBoxed(below, stack);
    return;
  }
  const auto all = torch::jit::last(*stack, operation.schema().arguments().size());
  const torch::jit::Stack given(all.begin(), all.end());
  auto state = state_before(kind, given);
  operation.redispatchBoxed(below, stack);
  tell(kind, stream, given, std::move(state), torch::jit::last(*stack, operation.schema().returns().size()));
}

std::optional<at::Generator> Recorder::state_before(const Kind &kind, const torch::jit::Stack &given) const {
  try {
    return Call::state_before(kind, given, known_.device);
  } catch (const std::exception &) {
    // The operation itself may succeed.
    return std::nullopt;
  }
}

void Recorder::tell(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                    std::optional<at::Generator> state, c10::ArrayRef<c10::IValue> returned) {
  std::vector<tenure_bytes> made;
  auto call = noted(kind, stream, given, std::move(state), returned, made);
  const auto inputs = call == nullptr ? written_by(kind, given) : call->inputs();
  listener_.operation(listener_.user, handle_of(stream), made.data(), made.size(), inputs.data(), inputs.size(),
                      reinterpret_cast<tenure_call *>(call.release()));
}

std::vector<tenure_bytes> Recorder::written_by(const Kind &kind, const torch::jit::Stack &given) const {
  std::vector<tenure_bytes> written;
  for (const auto at : kind.written)
    if (given[at].isTensor() && is_plain(given[at].toTensor()) && given[at].toTensor().device() == known_.device)
      written.push_back(bytes_of(given[at].toTensor()));
  return written;
}

std::unique_ptr<Call> Recorder::noted(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                                      std::optional<at::Generator> state, c10::ArrayRef<c10::IValue> returned,
                                      std::vector<tenure_bytes> &made) {
  try {
    std::vector<std::pair<size_t, Layout>> results;
    const auto tensors = tensors_in(returned);
    for (size_t number = 0; number < tensors.size(); ++number) {
      if (!is_plain(tensors[number]) || tensors[number].device() != known_.device)
        continue;
      made.push_back(bytes_of(tensors[number]));
      // Autograd increments the version only after the operation.
      made.back().version += kind.is_in_place;
      results.emplace_back(number, Layout::by(tensors[number]));
    }
    auto call = Call::of(kind, stream, given, std::move(state), known_, std::move(results));
    if (call == nullptr)
      return nullptr;
    if (!kind.is_in_place && call->takes_any(made)) {
      // The operation returns a view of its argument.
      made.clear();
      return nullptr;
    }
    known_.add(made);
    return call;
  } catch (const std::exception &) {
    // The operation itself has succeeded, and this error is not its own.
    return nullptr;
  }
}

tenure_look Recorder::look(const at::Tensor &tensor) const {
  if (!is_plain(tensor) || tensor.device() != known_.device)
    return {};
  const auto bytes = bytes_of(tensor);
  // Memory from elsewhere has another deleter. On the CPU, memory of any allocator can be shared.
  const auto deleter = tensor.storage().data_ptr().get_deleter();
  const bool is_own = tensor.is_cpu() || deleter == c10::GetAllocator(tensor.device().type())->raw_deleter();
  return {is_own && !known_.is_staying(bytes), static_cast<uint8_t>(tensor.scalar_type()), bytes};
}

} // namespace tenure
