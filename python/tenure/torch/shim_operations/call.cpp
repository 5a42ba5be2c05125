#include "call.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

#include "generator.h"

namespace tenure {

namespace {

/// Arguments smaller than this are kept if they cannot be made again.
constexpr size_t kSmallBytes = 1 << 20;

bool is_whole(const at::Tensor &tensor) {
  return tensor.nbytes() == tensor.storage().nbytes();
}

/// Returns whether an operation in place can be repeated as one that makes a new tensor.
bool can_be_apart(const Kind &kind, const at::Tensor &written, const Known &known) {
  if (!is_whole(written))
    return false;
  // If its elements are not read, it does not matter whether the tensor was kept.
  return kind.is_unread ? written.is_non_overlapping_and_dense() && !known.is_staying(bytes_of(written))
                        : !known.kept(written);
}

bool is_drawing(const Kind &kind, const torch::jit::Stack &given) {
  return kind.is_random && !(kind.drops && given[*kind.drops].toDouble() == 0);
}

} // namespace

void Known::begin(const uintptr_t *staying, size_t count) {
  const std::lock_guard<std::mutex> locked(mutex_);
  staying_ = {staying, staying + count};
  made_.clear();
}

void Known::add(const std::vector<tenure_bytes> &made) {
  const std::lock_guard<std::mutex> locked(mutex_);
  for (const auto &bytes : made)
    made_.emplace(bytes.address, bytes.version);
}

bool Known::is_staying(const tenure_bytes &bytes) const {
  const std::lock_guard<std::mutex> locked(mutex_);
  return staying_.count(bytes.address) > 0;
}

bool Known::has_made(const tenure_bytes &bytes) const {
  const std::lock_guard<std::mutex> locked(mutex_);
  const auto [begin, end] = made_.equal_range(bytes.address);
  return std::any_of(begin, end, [&](const auto &version) { return version.second == bytes.version; });
}

std::optional<Kept> Known::kept(const at::Tensor &tensor) const {
  const auto bytes = bytes_of(tensor);
  const bool is_here = tensor.device() == device;
  if ((is_here && is_staying(bytes)) || tensor.unsafeGetTensorImpl()->is_wrapped_number())
    return Kept{alias_of(tensor), tensor._version()};
  // A tensor with a grad function is not kept: it would keep the tensors that the function has saved.
  const bool is_small = bytes.bytes < kSmallBytes && tensor.is_leaf() && !has_made(bytes);
  if (is_here ? !is_small : tensor.numel() != 1)
    return std::nullopt;
  // Copied, because other code may write to it.
  auto copy = copy_of(tensor);
  return Kept{copy, copy._version()};
}

std::optional<at::Generator> Call::state_before(const Kind &kind, const torch::jit::Stack &given, c10::Device device) {
  if (!kind.again || !is_drawing(kind, given))
    return std::nullopt;
  const bool is_named = kind.generator && !given[*kind.generator].isNone();
  return copy_of(is_named ? given[*kind.generator].toGenerator() : default_generator(device));
}

std::unique_ptr<Call> Call::of(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                               std::optional<at::Generator> state, const Known &known,
                               std::vector<std::pair<size_t, Layout>> results) {
  if (!kind.again || results.empty())
    return nullptr;
  if (kind.is_in_place && !can_be_apart(kind, given[0].toTensor(), known))
    return nullptr;
  if (is_drawing(kind, given) && !state)
    return nullptr;
  // With the benchmark mode on, cuDNN may choose another algorithm each time.
  if (kind.is_convolution && at::globalContext().benchmarkCuDNN())
    return nullptr;
  std::unique_ptr<Call> call(new Call(kind, stream, std::move(results)));
  call->state_ = std::move(state);
  call->givens_.reserve(given.size());
  for (size_t at = 0; at < given.size(); ++at) {
    const bool is_unread = kind.is_unread && at == 0;
    auto taken = is_unread ? take_unread(given[at].toTensor(), known) : call->take(call->argument(given, at), known);
    if (!taken)
      return nullptr;
    call->givens_.push_back(std::move(*taken));
  }
  return call;
}

bool Call::takes_any(const std::vector<tenure_bytes> &bytes) const {
  return std::any_of(bytes.begin(), bytes.end(), [&](const auto &one) {
    const auto is_it = [&](const auto &input) { return input.address == one.address; };
    return std::any_of(inputs_.begin(), inputs_.end(), is_it);
  });
}

c10::IValue Call::argument(const torch::jit::Stack &given, size_t at) const {
  const bool is_counter = kind_.is_counting && (at == 3 || at == 4) && given[5].toBool();
  if (is_counter)
    return {};
  // The default type may be another one by then.
  if (kind_.dtype == at && given[at].isNone())
    return c10::typeMetaToScalarType(results_.front().second.dtype);
  return given[at];
}

std::optional<Call::Given> Call::take_unread(const at::Tensor &tensor, const Known &known) {
  if (!is_plain(tensor) || tensor.device() != known.device)
    return std::nullopt;
  return Given{Unread{Layout::by(tensor)}};
}

std::optional<Call::Given> Call::take(const c10::IValue &value, const Known &known) {
  if (value.isTensor())
    return take(value.toTensor(), known);
  if (value.isTensorList() || value.isOptionalTensorList()) {
    List list{value.isOptionalTensorList(), {}};
    for (const c10::IValue &each : value.toListRef()) {
      auto taken = take(each, known);
      if (!taken)
        return std::nullopt;
      list.givens.push_back(std::move(*taken));
    }
    return Given{std::move(list)};
  }
  return Given{value};
}

std::optional<Call::Given> Call::take(const at::Tensor &tensor, const Known &known) {
  if (!tensor.defined())
    return Given{c10::IValue(tensor)};
  if (!is_plain(tensor))
    return std::nullopt;
  if (auto kept = known.kept(tensor))
    return Given{std::move(*kept)};
  if (tensor.device() != known.device)
    return std::nullopt;
  inputs_.push_back(bytes_of(tensor));
  return Given{Layout::by(tensor)};
}

c10::IValue Call::value_of(const Given &given, void *const *&storages) const {
  if (const auto *layout = std::get_if<Layout>(&given.what)) {
    auto *storage = static_cast<c10::StorageImpl *>(*storages++);
    return layout->of(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  }
  if (const auto *kept = std::get_if<Kept>(&given.what)) {
    TORCH_CHECK(kept->tensor._version() == kept->version, "a parameter, or another input, was written to since");
    return kept->tensor;
  }
  if (const auto *unread = std::get_if<Unread>(&given.what)) {
    const auto device = stream_.device();
    return kind_.is_in_place ? unread->layout.unfilled(device) : unread->layout.without_bytes(device);
  }
  const auto *list = std::get_if<List>(&given.what);
  if (list == nullptr)
    return std::get<c10::IValue>(given.what);
  c10::List<at::Tensor> tensors;
  c10::List<std::optional<at::Tensor>> optionals;
  for (const auto &each : list->givens) {
    const auto value = value_of(each, storages);
    if (list->is_optional)
      optionals.push_back(value.toOptional<at::Tensor>());
    else
      tensors.push_back(value.toTensor());
  }
  return list->is_optional ? c10::IValue(std::move(optionals)) : c10::IValue(std::move(tensors));
}

torch::jit::Stack Call::values(void *const *storages) const {
  torch::jit::Stack values;
  values.reserve(givens_.size());
  for (const auto &given : givens_)
    values.push_back(value_of(given, storages));
  return values;
}

void Call::run(const c10::OperatorHandle &operation, torch::jit::Stack &stack) const {
  if (!state_) {
    operation.callBoxed(stack);
  } else if (kind_.generator) {
    stack[*kind_.generator] = state_->clone();
    operation.callBoxed(stack);
  } else {
    const Rewound rewound(*state_);
    operation.callBoxed(stack);
  }
}

at::Tensor Call::run(size_t result, void *const *storages) const {
  c10::AutoGradMode no_gradients(false);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c10::OptionalStreamGuard on;
  if (stream_of(stream_.device()) != stream_)
    on.reset_stream(stream_);
  const auto &[number, layout] = results_.at(result);
  auto stack = values(storages);
  run(*kind_.again, stack);
  auto made = tensors_in(stack);
  if (kind_.in_place && !(Layout::by(made.at(number)) == layout)) {
    // An in-place operation's result has the type and strides of its argument.
    stack = values(storages);
    stack[0] = copy_of(stack[0].toTensor());
    run(*kind_.in_place, stack);
    made = tensors_in(stack);
  }
  TORCH_CHECK(number < made.size() && Layout::by(made[number]) == layout, kind_.name, " makes something else now");
  return made[number];
}

std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> results) {
  std::vector<at::Tensor> tensors;
  for (const auto &result : results) {
    if (result.isTensor())
      tensors.push_back(result.toTensor());
    else if (result.isTensorList())
      for (const c10::IValue &each : result.toListRef())
        tensors.push_back(each.toTensor());
  }
  return tensors;
}

} // namespace tenure
