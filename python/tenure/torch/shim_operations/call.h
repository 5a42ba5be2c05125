// An operation and its arguments, ready to run again.
#pragma once

#include <ATen/core/Generator.h>
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

/// A tensor that is kept as an argument, with its version.
struct Kept {
  at::Tensor tensor;
  int64_t version;
};

/// The storages that stay, and the results that a step has made. Nothing is freed under its lock, as that may need the
/// GIL.
class Known {
public:
  explicit Known(c10::Device device) : device(device) {}

  const c10::Device device;

  void begin(const uintptr_t *staying, size_t count);
  void add(const std::vector<tenure_bytes> &made);

  /// Returns whether the storage is at an address that stays.
  bool is_staying(const tenure_bytes &bytes) const;

  /// Returns an argument as kept, if it is kept rather than made again.
  std::optional<Kept> kept(const at::Tensor &tensor) const;

private:
  bool has_made(const tenure_bytes &bytes) const;

  mutable std::mutex mutex_;
  /// The addresses of storages that stay.
  std::unordered_set<uintptr_t> staying_;
  /// The addresses of results, each with its versions.
  std::unordered_multimap<uintptr_t, uint64_t> made_;
};

class Call {
public:
  /// Returns a generator with the state of the one that an operation is about to draw from. None if it draws nothing,
  /// or cannot be repeated.
  static std::optional<at::Generator> state_before(const Kind &kind, const torch::jit::Stack &given,
                                                   c10::Device device);

  /// Makes a call from an operation's arguments, some of which stay, and what state_before() returned. Returns null if
  /// the operation cannot be repeated: that is common, so it throws nothing.
  static std::unique_ptr<Call> of(const Kind &kind, c10::Stream stream, const torch::jit::Stack &given,
                                  std::optional<at::Generator> state, const Known &known,
                                  std::vector<std::pair<size_t, Layout>> results);

  /// Returns the storages of the arguments that do not stay.
  const std::vector<tenure_bytes> &inputs() const { return inputs_; }

  /// Returns whether any of these storages is an input's.
  bool takes_any(const std::vector<tenure_bytes> &bytes) const;

  /// Computes one of the results from storages of the inputs.
  at::Tensor run(size_t result, void *const *storages) const;

private:
  struct Given;
  using Givens = std::vector<Given>;
  /// A list of optional tensors, or of tensors.
  struct List {
    bool is_optional;
    Givens givens;
  };
  /// A tensor of which only the layout matters.
  struct Unread {
    Layout layout;
  };
  struct Given {
    std::variant<c10::IValue, Layout, Kept, List, Unread> what;
  };

  Call(const Kind &kind, c10::Stream stream, std::vector<std::pair<size_t, Layout>> results)
      : kind_(kind), stream_(stream), results_(std::move(results)) {}

  /// Returns an argument as it is passed when the operation is repeated.
  c10::IValue argument(const torch::jit::Stack &given, size_t at) const;
  static std::optional<Given> take_unread(const at::Tensor &tensor, const Known &known);
  std::optional<Given> take(const c10::IValue &value, const Known &known);
  std::optional<Given> take(const at::Tensor &tensor, const Known &known);
  c10::IValue value_of(const Given &given, void *const *&storages) const;

  /// Runs an operation on these arguments, which its results replace.
  void run(const c10::OperatorHandle &operation, torch::jit::Stack &stack) const;

  /// Returns the arguments, with the inputs on these storages.
  torch::jit::Stack values(void *const *storages) const;

  const Kind kind_;
  c10::Stream stream_;
  Givens givens_;
  /// A generator that draws what the operation drew; none if it drew nothing. Never drawn from itself.
  std::optional<at::Generator> state_;
  std::vector<tenure_bytes> inputs_;
  /// The layout of each result, with its number among all results.
  std::vector<std::pair<size_t, Layout>> results_;
};

/// Returns the tensors among an operation's results.
std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> results);

} // namespace tenure
