#include "saved.h"

#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function.h>

#include <sstream>
#include <utility>

namespace tenure {

namespace {

at::Tensor kept(const at::Tensor &tensor) {
  if (tensor.is_leaf())
    return tensor;
  // The tensor itself would make a cycle: an operation's result refers to the operation, which would refer to the
  // result.
  return tensor.key_set().has(c10::DispatchKey::Python) ? tensor.detach() : alias_of(tensor);
}

/// Returns Python's name of the tensor's type, such as `torch.cuda.FloatTensor`.
std::string type_of(const at::Tensor &tensor) {
  const std::string device = tensor.is_cuda() ? "cuda." : "", layout = tensor.is_sparse() ? "sparse." : "";
  return "torch." + device + layout + c10::toString(tensor.scalar_type()) + "Tensor";
}

} // namespace

Saved::Saved(const at::Tensor &tensor, bool is_without_bytes) {
  if (is_without_bytes)
    what_ = Held{Layout::by(tensor), counter_of(tensor)};
  else
    what_ = kept(tensor);
  if (!tensor.is_inference())
    version_ = tensor._version();
}

std::optional<std::string> Saved::modified() const {
  const auto *held = std::get_if<Held>(&what_);
  const auto &tensor = held == nullptr ? std::get<at::Tensor>(what_) : held->writes;
  if (!version_ || tensor._version() == *version_)
    return std::nullopt;
  std::ostringstream words;
  words << "one of the variables needed for gradient computation has been modified by an inplace operation: ["
        << type_of(tensor) << " " << (held == nullptr ? tensor.sizes() : c10::IntArrayRef(held->layout.sizes))
        << "] is at version " << tensor._version() << "; expected version " << *version_ << " instead.";
  if (!torch::autograd::AnomalyMode::is_enabled())
    words << " Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
             "torch.autograd.set_detect_anomaly(True, check_nan=False).";
  return words.str();
}

at::Tensor Saved::restored(c10::Storage storage) const {
  const auto *held = std::get_if<Held>(&what_);
  return held == nullptr ? std::get<at::Tensor>(what_) : held->layout.of(std::move(storage));
}

std::string name_of(const at::Tensor &tensor) {
  std::ostringstream name;
  if (const auto &made_by = tensor.grad_fn())
    name << made_by->name() << " ";
  name << "torch." << c10::getDtypeNames(tensor.scalar_type()).first << " " << tensor.sizes();
  return name.str();
}

} // namespace tenure
