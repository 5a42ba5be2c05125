#include "generator.h"

#include <ATen/Context.h>

#include <mutex>

namespace tenure {

at::Generator copy_of(const at::Generator &generator) {
  auto of = generator;
  const std::lock_guard<std::mutex> locked(of.mutex());
  if (!of.device().is_cpu()) {
    // Throws during a capture; clone() does not.
    of.current_seed();
  }
  // Not get_state(), which would take a tensor from the allocator that the budget limits.
  return of.clone();
}

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

Rewound::Rewound(const at::Generator &to) : generator_(default_generator(to.device())) {
  const std::lock_guard<std::mutex> locked(generator_.mutex());
  if (generator_.device().is_cpu()) {
    bytes_ = generator_.get_state();
    generator_.set_state(to.get_state());
  } else {
    // Not set_state(), which would also make cuDNN's RNNs start their dropout anew.
    state_ = generator_.graphsafe_get_state();
    generator_.graphsafe_set_state(to.clone());
  }
}

Rewound::~Rewound() {
  const std::lock_guard<std::mutex> locked(generator_.mutex());
  if (bytes_.defined())
    generator_.set_state(bytes_);
  else
    generator_.graphsafe_set_state(state_);
}

} // namespace tenure
