// Private pools.

#include "allocator.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace tenure {

namespace {

using Filter = std::function<bool(cudaStream_t)>;
using Source = std::shared_ptr<caching::CUDAAllocator>;

tenure_pool pool_of(MempoolId_t id) { return {id.first, id.second}; }

/// A use of a pool, from beginAllocateToPool() to endAllocateToPool().
struct Begun {
  int device;
  tenure_pool pool;
};

/// The pool use that this thread began last: PyTorch begins one right before the capture that it is for.
thread_local Begun begun_last{};

/// The captures that this thread began and has not ended, the last one last.
thread_local std::vector<Begun> captured;

/// A checkpoint of a pool, in the form in which PyTorch holds one.
struct Checkpoint final : caching::AllocatorState {
  explicit Checkpoint(tenure_checkpoint *it) : it(it) {}
  ~Checkpoint() override { api->drop_checkpoint(it); }
  Checkpoint(const Checkpoint &) = delete;
  Checkpoint &operator=(const Checkpoint &) = delete;

  tenure_checkpoint *it;
};

/// Allocates a segment from a program's own allocator. Returns NULL if that throws, as it does when out of memory.
void *allocate_from(void *source, size_t bytes, void *stream) {
  const auto call = [&] {
    // The allocator may call cudaMalloc, which would break a capture.
    const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
    return value_of<Source>(source)->raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(stream));
  };
  return shielded(call, static_cast<void *>(nullptr));
}

void free_to(void *source, void *address, size_t, void *) {
  warned("the allocator of a private pool failed to free a segment", [&] {
    const c10::cuda::CUDAStreamCaptureModeGuard guard(cudaStreamCaptureModeRelaxed);
    value_of<Source>(source)->raw_delete(address);
  });
}

} // namespace

void Allocator::emptyCache(MempoolId_t pool) {
  for (int device = 0; device < device_count_; device++)
    if (api->is_open(device))
      check(api->release_cached(device, pool_of(pool), gather(caching::RecordContext::ALL)));
}

void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, Source source) {
  check_device(device);
  // A program may pass the installed allocator, which is this one.
  if (source == nullptr || source.get() == this)
    return check(api->create_pool(device, pool_of(pool), nullptr));
  const tenure_pool_source own{hand_over(std::move(source)), allocate_from, free_to};
  check(api->create_pool(device, pool_of(pool), &own));
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->release_pool(device, pool_of(pool)));
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  size_t uses = 0;
  check(api->pool_uses(device, pool_of(pool), &uses));
  return static_cast<int>(uses);
}

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, Filter filter) {
  check_device(device);
  const auto passes = [](void *user, void *stream) {
    const auto call = [&] { return value_of<Filter>(user)(static_cast<cudaStream_t>(stream)); };
    return shielded(call, false);
  };
  constexpr bool may_capture = !marks_captures<caching::CUDAAllocator>(0);
  check(api->begin_pool(device, pool_of(pool), may_capture, passes, hand_over(std::move(filter))));
  begun_last = {device, pool_of(pool)};
}

void Allocator::markCaptureBegin(DeviceIndex device) {
  check_device(device);
  captured.push_back(begun_last);
  check(api->set_capturing(begun_last.device, begun_last.pool, true));
}

void Allocator::markCaptureEnd(DeviceIndex device) {
  check_device(device);
  // If another thread began the capture, it ends with the use of its pool.
  if (captured.empty())
    return;
  const Begun ended = captured.back();
  captured.pop_back();
  check(api->set_capturing(ended.device, ended.pool, false));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->end_pool(device, pool_of(pool)));
}

void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
  check_device(device);
  check(api->use_pool_on_oom(device, pool_of(pool), use_on_oom));
}

void Allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->set_no_split(device, pool_of(pool)));
}

bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         const std::unordered_set<void *> &expected) {
  check_device(device);
  std::unordered_set<void *> live;
  const auto add = [](void *live, void *address) {
    shielded([&] { value_of<std::unordered_set<void *>>(live).insert(address); });
  };
  check_told(api->live_blocks(device, pool_of(pool), add, &live));
  return live == expected;
}

std::shared_ptr<caching::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  tenure_checkpoint *checkpoint = nullptr;
  check(api->checkpoint(device, pool_of(pool), &checkpoint));
  return std::make_shared<Checkpoint>(checkpoint);
}

caching::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                           std::shared_ptr<caching::AllocatorState> state) {
  check_device(device);
  const auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
  TORCH_CHECK(checkpoint != nullptr, "a checkpoint of another allocator cannot be restored here");
  struct Told {
    caching::CheckpointDelta delta;
    c10::Device device;
  } told{{}, {c10::kCUDA, device}};
  const auto freed = [](void *told, void *address) {
    shielded([&] { value_of<Told>(told).delta.ptrs_freed.push_back(address); });
  };
  const auto allocated = [](void *user, void *address) {
    auto &told = value_of<Told>(user);
    shielded([&] { told.delta.dataptrs_allocd.emplace_back(address, address, &release, told.device); });
  };
  check_told(api->restore(device, checkpoint->it, freed, allocated, &told));
  return std::move(told.delta);
}

} // namespace tenure
