// Private pools.

#include "allocator.h"

namespace tenure {

namespace {

using Filter = std::function<bool(cudaStream_t)>;

tenure_pool pool_of(MempoolId_t id) { return {id.first, id.second}; }

} // namespace

void Allocator::emptyCache(MempoolId_t pool) {
  for (int device = 0; device < device_count_; device++)
    if (api->is_open(device))
      check(api->release_cached(device, pool_of(pool), gather(caching::RecordContext::ALL)));
}

void Allocator::beginAllocateToPool(DeviceIndex device, MempoolId_t pool, Filter filter) {
  check_device(device);
  const auto passes = [](void *user, void *stream) {
    return value_of<Filter>(user)(static_cast<cudaStream_t>(stream));
  };
  check(api->begin_pool(device, pool_of(pool), passes, hand_over(std::move(filter))));
}

void Allocator::endAllocateToPool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->end_pool(device, pool_of(pool)));
}

void Allocator::releasePool(DeviceIndex device, MempoolId_t pool) {
  check_device(device);
  check(api->release_pool(device, pool_of(pool)));
}

int Allocator::getPoolUseCount(DeviceIndex device, MempoolId_t pool) { TORCH_CHECK_NOT_IMPLEMENTED(false, ""); }
void Allocator::createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> source) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "");
}
void Allocator::setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "");
}
void Allocator::setNoSplit(DeviceIndex device, MempoolId_t pool) { TORCH_CHECK_NOT_IMPLEMENTED(false, ""); }
bool Allocator::checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                         const std::unordered_set<void *> &expected) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "");
}
std::shared_ptr<caching::AllocatorState> Allocator::getCheckpointState(DeviceIndex device, MempoolId_t pool) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "");
}
caching::CheckpointDelta Allocator::setCheckpointPoolState(DeviceIndex device,
                                                           std::shared_ptr<caching::AllocatorState> state) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "");
}

} // namespace tenure
