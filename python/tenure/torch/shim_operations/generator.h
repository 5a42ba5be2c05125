// The states of random number generators.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace tenure {

/// Returns a new generator that draws the numbers that this one would draw next. Throws while a CUDA graph is captured:
/// the state is then on the device.
at::Generator copy_of(const at::Generator &generator);

/// Returns the generator that operations on a device draw from if they are given none.
at::Generator default_generator(c10::Device device);

/// Lets a device's default generator draw the numbers of another one, for as long as this object lives. Afterwards the
/// default generator goes on where it was. A thread that draws from it meanwhile gets numbers of the other one: kernels
/// lock the generator themselves, so its lock cannot be held for so long.
class Rewound {
public:
  explicit Rewound(const at::Generator &to);
  ~Rewound();
  Rewound(const Rewound &) = delete;
  Rewound &operator=(const Rewound &) = delete;

private:
  at::Generator generator_;
  /// Where the default generator was: bytes on the CPU, on other devices a generator.
  at::Tensor bytes_;
  at::Generator state_;
};

} // namespace tenure
