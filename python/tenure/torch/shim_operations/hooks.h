// Hooks of the tensors that a thread saves for backward.
#pragma once

#include <c10/core/SafePyObject.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

namespace tenure {

/// A pair of hooks on a thread's stack. PyTorch calls only the pair on top. It can be switched off, wherever it lies on
/// the stack: then PyTorch saves tensors as if it had never been there.
class Hooks {
public:
  /// Puts a pair of Python functions on top of this thread's stack. Takes over the references.
  static std::shared_ptr<Hooks> enter(PyObject *pack, PyObject *unpack);

  /// Takes the pair off this thread's stack for good.
  void leave();

  /// Switches the pair on or off, on this thread.
  void set(bool on);

  /// Takes the pair off the stack whether it is on or off, until it is no longer suspended.
  void suspend(bool is_suspended);

  /// Switches this thread's pair on or off, if it has only one.
  static void set_only(bool on);

  /// Returns whether this thread has any.
  static bool any();

private:
  using Pair = std::pair<c10::SafePyObject, c10::SafePyObject>;

  explicit Hooks(size_t depth) : depth_(depth) {}

  /// Puts the pair on the stack or takes it off, as is wanted, if PyTorch allows hooks now.
  void apply();

  /// The number of pairs below it.
  const size_t depth_;
  bool is_on_ = true;
  bool is_suspended_ = false;
  /// The pair, while it is off.
  std::optional<Pair> off_;
};

} // namespace tenure
