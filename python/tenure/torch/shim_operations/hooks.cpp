#include "hooks.h"

#include <ATen/SavedTensorHooks.h>

#include <algorithm>
#include <vector>

// Declared here, as its header needs Python's own.
c10::impl::PyInterpreter *getPyInterpreter();

namespace tenure {

namespace {

using Tensors = at::SavedTensorDefaultHooks;
using Pairs = std::vector<std::pair<c10::SafePyObject, c10::SafePyObject>>;

/// The pairs that this thread has entered, the innermost last.
thread_local std::vector<std::shared_ptr<Hooks>> entered;

/// Takes all pairs off this thread's stack, the highest first, down to a depth.
Pairs taken(size_t depth) {
  Pairs pairs;
  while (Tensors::get_tls_state().stack.size() > depth)
    pairs.push_back(Tensors::pop_hooks());
  return pairs;
}

void put_back(Pairs pairs) {
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair)
    Tensors::push_hooks(std::move(pair->first), std::move(pair->second));
}

} // namespace

std::shared_ptr<Hooks> Hooks::enter(PyObject *pack, PyObject *unpack) {
  c10::SafePyObject first(pack, getPyInterpreter()), second(unpack, getPyInterpreter());
  Tensors::lazy_initialize();
  const std::shared_ptr<Hooks> hooks(new Hooks(Tensors::get_tls_state().stack.size()));
  Tensors::push_hooks(std::move(first), std::move(second));
  entered.push_back(hooks);
  return hooks;
}

void Hooks::leave() {
  set(false);
  const auto is_own = [this](const auto &hooks) { return hooks.get() == this; };
  entered.erase(std::remove_if(entered.begin(), entered.end(), is_own), entered.end());
}

void Hooks::set(bool on) {
  is_on_ = on;
  apply();
}

void Hooks::suspend(bool is_suspended) {
  is_suspended_ = is_suspended;
  apply();
}

void Hooks::apply() {
  const bool on = is_on_ && !is_suspended_;
  if (on != off_.has_value() || !Tensors::is_enabled())
    return;
  auto above = taken(depth_ + (on ? 0 : 1));
  if (on)
    above.push_back(*std::exchange(off_, std::nullopt));
  else
    off_.emplace(Tensors::pop_hooks());
  put_back(std::move(above));
}

void Hooks::set_only(bool on) {
  if (entered.size() == 1)
    entered.front()->set(on);
}

bool Hooks::any() { return !entered.empty(); }

} // namespace tenure
