#include "call.h"

#include <ATen/Context.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

namespace tenure {

namespace {

/// What has fewer bytes is kept if nobody knows how to make it.
constexpr size_t kSmallBytes = 1 << 20;

bool is_whole(const at::Tensor &tensor) {
  return tensor.nbytes() == tensor.storage().nbytes();
}

} // namespace

bool Known::has_made(const tenure_bytes &bytes) const {
  const auto [begin, end] = made.equal_range(bytes.address);
  return std::any_of(begin, end, [&](const auto &version) { return version.second == bytes.version; });
}

bool Known::stays(const at::Tensor &tensor) const {
  if (tensor.device() != device)
    return tensor.numel() == 1;
  const auto bytes = bytes_of(tensor);
  if (staying.count(bytes.address) > 0)
    return true;
  // What was made by what has saved others would keep these.
  return bytes.bytes < kSmallBytes && tensor.grad_fn() == nullptr && !has_made(bytes);
}

Call::Call(const Kind &kind, c10::Stream stream, torch::jit::Stack given, const Known &known,
           std::vector<std::pair<size_t, Layout>> results)
    : name_(kind.name), again_(kind.again ? *kind.again : throw Unrepeatable{}), stream_(stream),
      results_(std::move(results)) {
  if (results_.empty())
    throw Unrepeatable{};
  if (kind.is_in_place && (!is_whole(given[0].toTensor()) || known.stays(given[0].toTensor())))
    throw Unrepeatable{};
  if (kind.drops && given[*kind.drops].toDouble() > 0)
    throw Unrepeatable{};
  // The fastest is not always the same.
  if (kind.is_convolution && at::globalContext().benchmarkCuDNN())
    throw Unrepeatable{};
  if (kind.is_counting && given[5].toBool())
    given[3] = given[4] = c10::IValue();
  givens_.reserve(given.size());
  for (const auto &value : given)
    givens_.push_back(take(value, known));
}

bool Call::takes_any(const std::vector<tenure_bytes> &bytes) const {
  return std::any_of(bytes.begin(), bytes.end(), [&](const auto &one) {
    const auto is_it = [&](const auto &input) { return input.address == one.address; };
    return std::any_of(inputs_.begin(), inputs_.end(), is_it);
  });
}

Call::Given Call::take(const c10::IValue &value, const Known &known) {
  if (value.isTensor())
    return take(value.toTensor(), known);
  if (value.isTensorList() || value.isOptionalTensorList()) {
    List list{value.isOptionalTensorList(), {}};
    for (const c10::IValue &each : value.toListRef())
      list.givens.push_back(take(each, known));
    return {std::move(list)};
  }
  return {value};
}

Call::Given Call::take(const at::Tensor &tensor, const Known &known) {
  if (!tensor.defined())
    return {c10::IValue(tensor)};
  if (!is_plain(tensor))
    throw Unrepeatable{};
  if (known.stays(tensor))
    return {Kept{alias_of(tensor), tensor._version()}};
  if (tensor.device() != known.device)
    throw Unrepeatable{};
  inputs_.push_back(bytes_of(tensor));
  return {Layout::by(tensor)};
}

c10::IValue Call::value_of(const Given &given, void *const *&storages) {
  if (const auto *layout = std::get_if<Layout>(&given.what)) {
    auto *storage = static_cast<c10::StorageImpl *>(*storages++);
    return layout->of(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage)));
  }
  if (const auto *kept = std::get_if<Kept>(&given.what)) {
    TORCH_CHECK(kept->tensor._version() == kept->version, "a parameter, or another input, was written to since");
    return kept->tensor;
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

at::Tensor Call::run(size_t result, void *const *storages) const {
  torch::jit::Stack stack;
  stack.reserve(givens_.size());
  for (const auto &given : givens_)
    stack.push_back(value_of(given, storages));
  c10::AutoGradMode no_gradients(false);
  c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  c10::OptionalStreamGuard on;
  if (stream_of(stream_.device()) != stream_)
    on.reset_stream(stream_);
  again_.callBoxed(stack);
  const auto &[number, layout] = results_.at(result);
  const auto tensors = tensors_in(stack);
  TORCH_CHECK(number < tensors.size() && Layout::by(tensors[number]) == layout, name_, " makes something else now");
  return tensors[number];
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
