// What is known of an operation.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>

namespace tenure {

struct Kind {
  std::string name;
  /// What makes the same again; none if nothing does.
  std::optional<c10::OperatorHandle> again;
  /// Whether it writes to what it is given first, which it returns; and itself, if that can be made again.
  bool is_in_place;
  std::optional<c10::OperatorHandle> in_place;
  /// Which argument says how much it drops: what drops something is not repeated.
  std::optional<size_t> drops;
  /// Whether it counts what it sees: in the fourth and fifth argument, if the sixth says so.
  bool is_counting;
  bool is_convolution;
};

/// Null if an operation only looks at what it is given. It is there for as long as the thread.
const Kind *kind_of(const c10::OperatorHandle &operation);

} // namespace tenure
