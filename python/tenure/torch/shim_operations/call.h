// An operation, and what it was given.
#pragma once

#include <ATen/core/stack.h>

#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "kind.h"
#include "tensor.h"

namespace tenure {

/// A tensor that is kept.
struct Kept {
  at::Tensor tensor;
  int64_t version;
};

/// What stays, and what a step has made of it. Nothing is freed while it is locked: that may take Python's lock.
class Known {
public:
  explicit Known(c10::Device device) : device(device) {}

  const c10::Device device;

  void begin(const uintptr_t *staying, size_t count);
  void add(const std::vector<tenure_bytes> &made);

  /// Whether that is at an address that stays.
  bool is_staying(const tenure_bytes &bytes) const;

  /// What an operation was given, if it is kept rather than made again.
  std::optional<Kept> kept(const at::Tensor &tensor) const;

private:
  bool has_made(const tenure_bytes &bytes) const;

  mutable std::mutex mutex_;
  /// Addresses.
  std::unordered_set<uintptr_t> staying_;
  /// Addresses of what was made, each with its versions.
  std::unordered_multimap<uintptr_t, uint64_t> made_;
};

class Call {
public:
  /// What was given, some of which stays. Null if nobody knows how to repeat it: that is common, so nothing is thrown.
  static std::unique_ptr<Call> of(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                                  const Known &known, std::vector<std::pair<size_t, Layout>> results);

  /// What it was given that does not stay.
  const std::vector<tenure_bytes> &inputs() const { return inputs_; }

  /// Whether any of these bytes is an input's.
  bool takes_any(const std::vector<tenure_bytes> &bytes) const;

  /// One of the results, of storages of the inputs.
  at::Tensor run(size_t result, void *const *storages) const;

private:
  struct Given;
  using Givens = std::vector<Given>;
  /// Of optional tensors, or of tensors.
  struct List {
    bool is_optional;
    Givens givens;
  };
  struct Given {
    std::variant<c10::IValue, Layout, Kept, List> what;
  };

  Call(const Kind &kind, c10::Stream stream, std::vector<std::pair<size_t, Layout>> results)
      : kind_(kind), stream_(stream), results_(std::move(results)) {}

  std::optional<Given> take(const c10::IValue &value, const Known &known);
  std::optional<Given> take(const at::Tensor &tensor, const Known &known);
  static c10::IValue value_of(const Given &given, void *const *&storages);

  /// What it was given, on these storages.
  torch::jit::Stack values(void *const *storages) const;

  const Kind kind_;
  c10::Stream stream_;
  Givens givens_;
  std::vector<tenure_bytes> inputs_;
  /// With the number that each has among all.
  std::vector<std::pair<size_t, Layout>> results_;
};

/// Tensors among what an operation has returned.
std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> results);

} // namespace tenure
