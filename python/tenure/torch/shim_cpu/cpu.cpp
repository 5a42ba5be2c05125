// Tenure under PyTorch's memory of the CPU. It does nothing but convert.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>

#include "tenure_cpu.h"

namespace {

const tenure_cpu_api *api = nullptr;

/// What was there before.
c10::Allocator *below = nullptr;

/// Frees any memory of the CPU by its address: some of PyTorch's code keeps nothing else.
void free_by_address(void *data) {
  if (!api->free(data))
    below->raw_deallocate(data);
}

/// Gives memory of Tenure's to threads that have chosen where theirs comes from, and to others what was there before.
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
  // PyTorch ignores whoever comes with a lower priority than the one that is there.
  c10::SetCPUAllocator(&allocator, UINT8_MAX);
  TORCH_CHECK(c10::GetCPUAllocator() == &allocator, "PyTorch kept another allocator of the CPU");
}

} // namespace

/// Puts Tenure under PyTorch's memory of the CPU. Returns whether it did; if not, `message` says why.
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
