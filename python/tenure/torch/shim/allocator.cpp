// Allocation and release of blocks.

#include "allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>

#include <mutex>
#include <unordered_set>

namespace tenure {

const tenure_torch_api *api = nullptr;
std::atomic<bool> any_thrown{false};

std::exception_ptr &thrown() {
  static thread_local std::exception_ptr exception;
  return exception;
}

namespace {

constexpr size_t kExabyte = size_t{1} << 60;

/// Returns whether every block must come directly from the driver, for tools that look for invalid accesses.
bool is_uncached() {
  static const bool uncached = c10::utils::has_env("PYTORCH_NO_CUDA_MEMORY_CACHING");
  return uncached;
}

/// Reports a new block to PyTorch's profiler (or, with `sign` -1, a freed one).
C10_NOINLINE void report(void *address, int64_t sign) {
  int device = 0;
  size_t bytes = 0;
  tenure_statistics figures;
  if (api->block(address, &device, &bytes) != TENURE_OK || api->statistics(device, &figures) != TENURE_OK)
    return;
  const size_t gone = sign < 0 ? bytes : 0;
  c10::reportMemoryUsageToProfiler(address, sign * static_cast<int64_t>(bytes),
                                   figures.allocated_bytes[0].current - gone, figures.reserved_bytes[0].current,
                                   c10::Device(c10::kCUDA, static_cast<DeviceIndex>(device)));
}

/// Reports a failed request to PyTorch's profiler.
void report_out_of_memory(DeviceIndex device, size_t bytes) {
  tenure_statistics figures;
  if (c10::memoryProfilingEnabled() && api->statistics(device, &figures) == TENURE_OK)
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), figures.allocated_bytes[0].current,
                                     figures.reserved_bytes[0].current, c10::Device(c10::kCUDA, device));
}

void trace_allocation(void *address) {
  if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
    (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
}

void trace_deallocation(void *address) {
  if (const auto *interpreter = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(interpreter != nullptr))
    (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(address));
}

void *allocate_uncached(size_t bytes) {
  void *address = nullptr;
  C10_CUDA_CHECK(cudaMalloc(&address, bytes));
  trace_allocation(address);
  return address;
}

void release_uncached(void *address) {
  trace_deallocation(address);
  C10_CUDA_CHECK(cudaFree(address));
}

/// The blocks that were allocated without a deleter while the cache was off: raw_delete() must tell them from the
/// others.
struct RawUncached {
  std::mutex mutex;
  std::unordered_set<void *> addresses;

  void *add(void *address) {
    const std::lock_guard<std::mutex> lock(mutex);
    addresses.insert(address);
    return address;
  }

  bool remove(void *address) {
    const std::lock_guard<std::mutex> lock(mutex);
    return addresses.erase(address) > 0;
  }
};

RawUncached &raw_uncached() {
  static auto &it = *new RawUncached;
  return it;
}

} // namespace

void fail(tenure_status status) {
  if (auto exception = std::exchange(thrown(), nullptr))
    std::rethrow_exception(exception);
  const char *message = api->last_error();
  TORCH_CHECK_WITH(OutOfMemoryError, status != TENURE_OUT_OF_MEMORY, message);
  TORCH_CHECK(status != TENURE_UNKNOWN_ADDRESS, "invalid device pointer: ", message); // PyTorch's words
  TORCH_CHECK(false, message);
}

void release(void *address) {
  if (address == nullptr)
    return;
  trace_deallocation(address);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()))
    report(address, -1);
  check(api->free(address, gather(caching::RecordContext::ALL)));
}

c10::DataPtr Allocator::allocate(size_t bytes) {
  TORCH_CHECK_WITH(OutOfMemoryError, bytes < kExabyte, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  const DeviceIndex device = c10::cuda::current_device();
  void *address = nullptr;
  if (bytes != 0 && C10_UNLIKELY(is_uncached() || !isEnabled())) {
    address = allocate_uncached(bytes);
    return {address, address, &release_uncached, c10::Device(c10::kCUDA, device)};
  }
  if (bytes != 0)
    address = allocate_on(device, bytes, c10::cuda::getCurrentCUDAStream(device));
  return {address, address, &release, c10::Device(c10::kCUDA, device)};
}

c10::DeleterFnPtr Allocator::raw_deleter() const { return is_uncached() ? &release_uncached : &release; }

void *Allocator::raw_alloc(size_t bytes) {
  return bytes == 0 ? nullptr : raw_alloc_with_stream(bytes, c10::cuda::getCurrentCUDAStream(c10::cuda::current_device()));
}

void *Allocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  if (bytes == 0)
    return nullptr;
  if (C10_UNLIKELY(is_uncached() || !isEnabled()))
    return raw_uncached().add(allocate_uncached(bytes));
  return allocate_on(c10::cuda::current_device(), bytes, stream);
}

void Allocator::raw_delete(void *address) { raw_uncached().remove(address) ? release_uncached(address) : release(address); }

void *Allocator::allocate_on(DeviceIndex device, size_t bytes, cudaStream_t stream) {
  void *address = nullptr;
  const auto attempt = [&] {
    return api->allocate(device, bytes, stream, gather(caching::RecordContext::STATE), &address);
  };
  tenure_status status = attempt();
  // Nothing cached is given back while a capture seems to be underway.
  if (C10_UNLIKELY(status == TENURE_OUT_OF_MEMORY) && end_failed_captures())
    status = attempt();
  if (C10_UNLIKELY(status != TENURE_OK)) {
    if (status == TENURE_OUT_OF_MEMORY)
      report_out_of_memory(device, bytes);
    fail(status);
  }
  if (C10_UNLIKELY(any_thrown.load(std::memory_order_relaxed)) && thrown() != nullptr) {
    // A pool's filter or a callback that was asked to free memory has thrown.
    api->free(address, kNothing);
    fail(status);
  }
  trace_allocation(address);
  if (C10_UNLIKELY(c10::memoryProfilingEnabled()))
    report(address, 1);
  return address;
}

void Allocator::recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) {
  // The exporting process keeps its memory alive for as long as this process uses it.
  if (data.get() != nullptr && data.get_deleter() == &release)
    check(api->record_stream(data.get(), stream.stream()));
}

void *Allocator::getBaseAllocation(void *address, size_t *bytes) {
  void *first = nullptr;
  size_t length = 0;
  check(api->extent(address, &first, &length));
  if (bytes != nullptr)
    *bytes = length;
  return first;
}

void Allocator::init(int device_count) {
  // Each device is opened at its first use, since opening it creates its context.
  device_count_ = std::max(device_count_.load(), device_count);
}

bool Allocator::initialized() { return device_count_ > 0; }

void Allocator::enable(bool value) { enabled_ = value; }

bool Allocator::isEnabled() const { return enabled_.load(std::memory_order_relaxed); }

void Allocator::check_device(DeviceIndex device) const {
  TORCH_CHECK(0 <= device && device < device_count_, "Invalid device argument ", static_cast<int>(device),
              ": did you call init?");
}

} // namespace tenure
