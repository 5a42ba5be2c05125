// Installation of the allocator under PyTorch.

#include "allocator.h"

#include <c10/util/env.h>
#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

namespace tenure {

namespace {

/// Runs PyTorch's registered free-memory callbacks. Returns whether one freed memory.
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

/// Returns an exception's message, without the stack trace that PyTorch's own exceptions have.
const char *text_of(const std::exception &error) {
  const auto *own = dynamic_cast<const c10::Error *>(&error);
  return own != nullptr ? own->what_without_backtrace() : error.what();
}

/// Returns the settings that the program was started with, as text for an error.
std::string settings_given() {
  std::string given;
  for (const char *name : {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"})
    if (const auto value = c10::utils::get_env(name))
      given += std::string(", ") + name + "=" + *value;
  return given;
}

/// Checks PyTorch's settings before anything is replaced, since PyTorch may refuse them.
void check_settings() {
  try {
    read_settings();
  } catch (const std::exception &error) {
    TORCH_CHECK(false, "PyTorch refuses its own settings", settings_given(), ": ", text_of(error));
  }
}

void install(const tenure_torch_api *table, const char *options) {
  TORCH_CHECK(table->abi == TENURE_TORCH_ABI && table->size >= sizeof(tenure_torch_api),
              "the shim and Tenure are of different versions: build the shim again");
  check_settings();
  api = table;
  check(api->configure(options));
  ends_failed_captures = std::strstr(options, "allocator=paged") != nullptr;
  apply_settings();
  // Never destroyed: blocks are freed until the process ends.
  static auto &allocator = *new auto(std::make_shared<Allocator>());
  torch::cuda::CUDAPluggableAllocator::changeCurrentAllocator(allocator);
  c10::SetAllocator(c10::kCUDA, allocator.get(), 1);
  install_pinned();
  follow_settings();
  check(api->add_free_memory_callback(free_memory, kNothing));
}

} // namespace

} // namespace tenure

/// Returns whether PyTorch has started to use its own allocator: then it accepts no other. Python code may not know of
/// it.
extern "C" __attribute__((visibility("default"))) bool tenure_torch_has_started() {
  return tenure::caching::get()->initialized();
}

/// Puts Tenure under PyTorch. Returns whether that succeeded; if not, `message` says why.
extern "C" __attribute__((visibility("default"))) bool tenure_torch_install(const tenure_torch_api *table, const char *options, char *message, size_t bytes) {
  try {
    tenure::install(table, options);
    return true;
  } catch (const std::exception &error) {
    std::snprintf(message, bytes, "%s", tenure::text_of(error));
  }
  return false;
}
