#include "kind.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace tenure {

namespace {

/// Operations, beside pointwise and random ones, that make the same bits each time: their forward pass is not among
/// those that torch.use_deterministic_algorithms() names, nor does their documentation say that results vary (as it
/// does for the order of equal elements in topk). Products and convolutions are named there for the benchmark mode
/// (see Call::of).
///
/// The results of zeros(), full() and fill_() are not repeated. They are often the buffers that a program's own kernels
/// write to, which PyTorch does not notice.
const std::unordered_set<std::string> kRepeatable{
    "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_fused_rms_norm", "_grouped_mm", "_log_softmax", "_prelu_kernel",
    "_safe_softmax", "_scaled_grouped_mm", "_scaled_mm", "_softmax", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell",
    "_to_copy", "_upsample_bicubic2d_aa", "_upsample_bilinear2d_aa", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "_weight_norm_interface", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "addmm", "addmv", "affine_grid_generator", "all", "amax", "amin", "any", "arange", "argmax",
    "argmin", "avg_pool2d", "avg_pool3d", "baddbmm", "batch_norm_elemt", "batch_norm_stats", "binary_cross_entropy",
    "bmm", "cat", "clone", "col2im", "complex", "constant_pad_nd", "convolution", "diag_embed", "embedding", "flip",
    "fractional_max_pool2d", "fractional_max_pool3d", "gather", "glu", "grid_sampler_2d", "grid_sampler_3d",
    "huber_loss", "im2col", "index", "index_select", "linalg_vector_norm", "linear", "linspace", "log_sigmoid_forward",
    "logsumexp", "masked_fill", "max", "max_pool2d_with_indices", "max_pool3d_with_indices", "mean", "min", "mm",
    "mse_loss", "mv", "native_channel_shuffle", "native_group_norm", "native_layer_norm", "pixel_shuffle",
    "pixel_unshuffle", "polar", "prod", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "replication_pad3d", "roll", "select_scatter",
    "slice_scatter", "smooth_l1_loss", "sort", "split_with_sizes_copy", "stack", "std", "std_mean", "sum", "tril",
    "triu", "upsample_bicubic2d", "upsample_bilinear2d", "upsample_linear1d", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_trilinear3d", "var", "var_mean"};

/// Operations that are tagged as random, but that the state of a generator does not settle: those that keep a state of
/// their own on the device, and one that adds up probabilities in an order that may vary.
const std::unordered_set<std::string> kUnsettled{"_cudnn_init_dropout_state", "_cudnn_rnn", "miopen_rnn",
                                                 "multinomial"};

/// Random operations that take a tensor only for its size, type and layout. So do random operations in place.
const std::unordered_set<std::string> kLike{"rand_like", "randint_like", "randn_like"};

/// Operations that make the same bits each time, but also update running statistics.
const std::unordered_set<std::string> kCounting{"cudnn_batch_norm", "native_batch_norm"};

const std::string kNamespace = "aten::";

std::optional<size_t> index_of(const char *name, const std::vector<c10::Argument> &arguments) {
  for (size_t at = 0; at < arguments.size(); ++at)
    if (arguments[at].name() == name)
      return at;
  return std::nullopt;
}

bool is_of_tensors(const c10::Argument &argument) {
  return argument.type()->str().find("Tensor") != std::string::npos;
}

/// Returns whether the generator's state settles the results of a random operation. Backward passes of attention may
/// add in any order.
bool is_settled(const std::string &name) {
  const std::string backward = "_backward";
  const bool is_backward = name.size() > backward.size() && name.rfind(backward) == name.size() - backward.size();
  return !is_backward && kUnsettled.count(name) == 0;
}

/// Returns whether an operation is made of others, such as dropout_(), which reads what it writes to. Recorders see
/// the others in its place, except where autograd is off.
bool is_composite(const c10::OperatorHandle &operation) {
  return operation.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

std::unique_ptr<Kind> look_at(const c10::OperatorHandle &operation) {
  const auto &schema = operation.schema();
  const auto &arguments = schema.arguments();
  const auto is_written = [](const c10::Argument &argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  };
  const auto written = std::count_if(arguments.begin(), arguments.end(), is_written);
  const auto is_alias = [](const c10::Argument &result) { return result.alias_info() != nullptr; };
  if (written == 0 && std::all_of(schema.returns().begin(), schema.returns().end(), is_alias))
    return nullptr;
  auto kind = std::make_unique<Kind>();
  const bool is_known = schema.name().rfind(kNamespace, 0) == 0;
  if (!is_known)
    return kind;
  kind->name = schema.name().substr(kNamespace.size());
  kind->is_random = operation.hasTag(at::Tag::nondeterministic_seeded);
  kind->generator = index_of("generator", arguments);
  kind->drops = index_of("dropout_p", arguments);
  if (std::none_of(arguments.begin(), arguments.end(), is_of_tensors))
    kind->dtype = index_of("dtype", arguments);
  const bool is_same = kind->is_random ? is_settled(kind->name)
                                       : operation.hasTag(at::Tag::pointwise) || kRepeatable.count(kind->name) > 0;
  kind->is_counting = kCounting.count(kind->name) > 0;
  kind->is_convolution = kind->name == "convolution";
  kind->is_in_place = written == 1 && is_written(arguments.front()) && kind->name.back() == '_';
  for (size_t at = 0; at < arguments.size() && !kind->is_in_place; ++at)
    if (is_written(arguments[at]))
      kind->written.push_back(at);
  kind->is_unread = kind->is_random && (kind->is_in_place || kLike.count(kind->name) > 0);
  if (kind->is_in_place && kind->is_random) {
    if (is_same && !is_composite(operation))
      kind->again = operation;
  } else if (kind->is_in_place) {
    if (is_same) {
      const auto name = schema.name().substr(0, schema.name().size() - 1);
      kind->again = c10::Dispatcher::singleton().findSchema({name, schema.overload_name()});
      kind->in_place = operation;
    }
  } else if ((is_same && written == 0) || kind->is_counting) {
    kind->again = operation;
  }
  return kind;
}

} // namespace

const Kind *kind_of(const c10::OperatorHandle &operation) {
  thread_local std::unordered_map<c10::OperatorHandle, std::unique_ptr<Kind>> known;
  const auto found = known.find(operation);
  return (found != known.end() ? found : known.emplace(operation, look_at(operation)).first)->second.get();
}

} // namespace tenure
