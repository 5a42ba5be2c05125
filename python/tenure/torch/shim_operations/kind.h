// The facts about an operation that decide how it is repeated.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

namespace tenure {

struct Kind {
  std::string name;
  /// The operation that makes the same results again; none if there is no such operation.
  std::optional<c10::OperatorHandle> again;
  /// Whether it writes to its first argument and returns it; and the operation itself, if it can be repeated.
  bool is_in_place;
  std::optional<c10::OperatorHandle> in_place;
  /// The arguments that it writes to, by index, unless it is in place.
  std::vector<size_t> written;
  /// Whether its results depend on the state of a random number generator; and the index of the argument that may name
  /// the generator, if there is one.
  bool is_random;
  std::optional<size_t> generator;
  /// The index of the argument with the dropout probability: if it is 0, nothing is random.
  std::optional<size_t> drops;
  /// Whether the elements of its first argument are not read: only their number, type and layout matter.
  bool is_unread;
  /// The index of the argument with the type of the result, of an operation that takes no tensors.
  std::optional<size_t> dtype;
  /// Whether it updates running statistics: in the arguments 3 and 4 (from 0), if argument 5 says so.
  bool is_counting;
  bool is_convolution;
};

/// Returns the facts about an operation. Null if it only makes views. Valid for as long as the thread lives.
const Kind *kind_of(const c10::OperatorHandle &operation);

} // namespace tenure
