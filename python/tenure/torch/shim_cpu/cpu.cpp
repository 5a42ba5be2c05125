// PyTorch's CPU allocator on Tenure. This file only converts calls.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

#include "tenure_cpu.h"

namespace {

const tenure_cpu_api *api = nullptr;

/// The CPU allocator that was installed before.
c10::Allocator *below = nullptr;

/// Frees any CPU memory by its address: some of PyTorch's code keeps nothing else.
void free_by_address(void *data) {
  if (!api->free(data))
    below->raw_deallocate(data);
}

/// An allocator that uses Tenure's memory on threads that have chosen a placement, and the previous allocator on
/// others.
class Allocator final : public c10::Allocator {
public:
  c10::DataPtr allocate(size_t bytes) override {
    if (!api->is_chosen())
      return below->allocate(bytes);
    void *data = nullptr;
    const auto status = api->allocate(bytes, &data);
    TORCH_CHECK_WITH(OutOfMemoryError, status != TENURE_OUT_OF_MEMORY, api->last_error());
    TORCH_CHECK(status == TENURE_OK, api->last_error());
    return {data, data, free_by_address, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return free_by_address; }

  void copy_data(void *to, const void *from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

void install(const tenure_cpu_api *table) {
  TORCH_CHECK(table->abi == TENURE_CPU_ABI && table->size >= sizeof(tenure_cpu_api),
              "the shim and Tenure are of different versions: build the shim again");
  api = table;
  below = c10::GetCPUAllocator();
  TORCH_CHECK(below->raw_deleter() != nullptr, "PyTorch's allocator of the CPU is another's already, and frees nothing by its address");
  // Never destroyed: memory is allocated until the process ends.
  static auto &allocator = *new Allocator;
  // PyTorch ignores an allocator with a lower priority than that of the present one.
  c10::SetCPUAllocator(&allocator, UINT8_MAX);
  TORCH_CHECK(c10::GetCPUAllocator() == &allocator, "PyTorch kept another allocator of the CPU");
}

} // namespace

/// Puts Tenure under PyTorch's CPU allocator. Returns whether that succeeded; if not, `message` says why.
extern "C" __attribute__((visibility("default"))) bool tenure_cpu_install(const tenure_cpu_api *table, char *message, size_t bytes) {
  try {
    install(table);
    return true;
  } catch (const c10::Error &error) {
    std::snprintf(message, bytes, "%s", error.what_without_backtrace());
  } catch (const std::exception &error) {
    std::snprintf(message, bytes, "%s", error.what());
  }
  return false;
}
