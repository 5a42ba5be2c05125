// Putting the allocator under PyTorch.

#include "allocator.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdio>
#include <exception>

namespace tenure {

namespace {

/// Lets the free-memory callbacks that PyTorch knows of free what they can.
bool free_memory(void *) {
  const auto call = [] {
    bool freed = false;
    auto *registry = c10::FreeCudaMemoryCallbacksRegistry();
    for (const auto &name : registry->Keys())
      freed |= registry->Create(name)->Execute();
    return freed;
  };
  return shielded(call, false);
}

void install(const tenure_torch_api *table, const char *options) {
  TORCH_CHECK(table->abi == TENURE_TORCH_ABI && table->size >= sizeof(tenure_torch_api),
              "the shim and Tenure are of different versions: build the shim again");
  api = table;
  check(api->configure(options));
  // Before anything is replaced, since PyTorch may refuse its settings.
  try {
    follow_settings();
  } catch (const c10::Error &error) {
    TORCH_CHECK(false, "PyTorch refuses its own settings, PYTORCH_ALLOC_CONF: ", error.what_without_backtrace());
  }
  // Never destroyed: blocks are freed until the process ends.
  static auto &allocator = *new auto(std::make_shared<Allocator>());
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  c10::SetAllocator(c10::kCUDA, allocator.get(), 1);
  check(api->add_free_memory_callback(free_memory, kNothing));
}

} // namespace

} // namespace tenure

/// Puts Tenure under PyTorch. Returns whether it did; if not, `message` says why.
extern "C" __attribute__((visibility("default"))) bool tenure_torch_install(const tenure_torch_api *table, const char *options, char *message, size_t bytes) {
  try {
    tenure::install(table, options);
    return true;
  } catch (const c10::Error &error) {
    std::snprintf(message, bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception &error) {
    std::snprintf(message, bytes, "%s", error.what());
  }
  return false;
}
