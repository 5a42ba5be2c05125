#include "kind.h"

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace tenure {

namespace {

/// Operations, beside pointwise ones, that make the same bits each time.
const std::unordered_set<std::string> kRepeatable{
    "_adaptive_avg_pool2d", "_fused_rms_norm", "_log_softmax", "_softmax", "_to_copy", "addmm", "avg_pool2d", "baddbmm",
    "bmm", "cat", "clone", "constant_pad_nd", "convolution", "embedding", "index_select", "linear",
    "max_pool2d_with_indices", "mean", "mm", "native_group_norm", "native_layer_norm", "stack", "sum", "tril", "triu",
    "upsample_bilinear2d", "upsample_nearest2d"};

/// Operations that do so without dropout, with the index of the argument that has its probability.
const std::unordered_map<std::string, size_t> kAttention{{"_scaled_dot_product_cudnn_attention", 5},
                                                         {"_scaled_dot_product_efficient_attention", 5},
                                                         {"_scaled_dot_product_flash_attention", 3},
                                                         {"_scaled_dot_product_flash_attention_for_cpu", 3}};

/// Operations that do so, but also update running statistics.
const std::unordered_set<std::string> kCounting{"cudnn_batch_norm", "native_batch_norm"};

const std::string kNamespace = "aten::";

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
  const bool is_random = operation.hasTag(at::Tag::nondeterministic_seeded);
  const bool is_same = operation.hasTag(at::Tag::pointwise) || kRepeatable.count(kind->name) > 0;
  const auto attention = kAttention.find(kind->name);
  if (attention != kAttention.end())
    kind->drops = attention->second;
  kind->is_counting = kCounting.count(kind->name) > 0;
  kind->is_convolution = kind->name == "convolution";
  kind->is_in_place = written == 1 && is_written(arguments.front()) && kind->name.back() == '_';
  if (kind->is_in_place) {
    if (is_same && !is_random) {
      const auto name = schema.name().substr(0, schema.name().size() - 1);
      kind->again = c10::Dispatcher::singleton().findSchema({name, schema.overload_name()});
      kind->in_place = operation;
    }
  } else if ((is_same && !is_random && written == 0) || kind->drops || kind->is_counting) {
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
