// Callbacks of the allocator that throw while they are told to, for the tests.

#include <c10/cuda/CUDACachingAllocator.h>

#include <stdexcept>

namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

bool throwing = false;

struct FreesMemory final : c10::FreeMemoryCallback {
  bool Execute() override { return throwing ? throw std::runtime_error("the free-memory callback's") : false; }
};

} // namespace

extern "C" {

void let_throw(bool on) { throwing = on; }

void add_free_memory_callback() {
  c10::FreeCudaMemoryCallbacksRegistry()->Register("of a test", [] {
    return std::unique_ptr<c10::FreeMemoryCallback>(new FreesMemory);
  });
}

void add_tracker() {
  caching::attachAllocatorTraceTracker([](const caching::TraceEntry &) {
    if (throwing)
      throw 7; // no std::exception
  });
}

void *allocate(size_t, int, cudaStream_t) { throw std::runtime_error("the allocator's"); }
void release(void *, size_t, int, cudaStream_t) {}

void begin_pool(uint64_t first, uint64_t second) {
  const auto filter = [](cudaStream_t) { return throwing ? throw std::runtime_error("the filter's") : true; };
  caching::beginAllocateToPool(0, {first, second}, filter);
}

void end_pool(uint64_t first, uint64_t second) {
  caching::endAllocateToPool(0, {first, second});
  caching::releasePool(0, {first, second});
}

}
