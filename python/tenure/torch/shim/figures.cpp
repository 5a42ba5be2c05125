// Statistics and limits.

#include "allocator.h"

#include <c10/cuda/CUDAException.h>

#include <algorithm>
#include <type_traits>

namespace tenure {

c10::CachingAllocator::Stat stat_of(const tenure_stat &stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

namespace {

c10::CachingAllocator::StatArray stats_of(const tenure_stat *stats) {
  return {stat_of(stats[0]), stat_of(stats[1]), stat_of(stats[2])};
}

} // namespace

c10::CachingDeviceAllocator::DeviceStats Allocator::getDeviceStats(DeviceIndex device) {
  check_device(device);
  c10::CachingDeviceAllocator::DeviceStats result;
  result.max_split_size = -1; // no limit
  if (!api->is_open(device))
    return result;
  tenure_statistics figures;
  check(api->statistics(device, &figures));
  result.allocation = stats_of(figures.allocation);
  result.segment = stats_of(figures.segment);
  result.active = stats_of(figures.active);
  result.inactive_split = stats_of(figures.inactive_split);
  result.allocated_bytes = stats_of(figures.allocated_bytes);
  result.reserved_bytes = stats_of(figures.reserved_bytes);
  result.active_bytes = stats_of(figures.active_bytes);
  result.inactive_split_bytes = stats_of(figures.inactive_split_bytes);
  result.requested_bytes = stats_of(figures.requested_bytes);
  result.oversize_allocations = stat_of(figures.oversize_allocations);
  result.oversize_segments = stat_of(figures.oversize_segments);
  result.num_alloc_retries = figures.num_alloc_retries;
  result.num_ooms = figures.num_ooms;
  result.num_sync_all_streams = figures.num_sync_all_streams;
  result.num_device_alloc = figures.num_device_alloc;
  result.num_device_free = figures.num_device_free;
  result.max_split_size = figures.max_split_size;
  set_oom_rejections(result, figures.num_oom_rejections, 0);
  const auto fill = [device](auto &pools) {
    using Pools = std::remove_reference_t<decltype(pools)>;
    const auto add = [](void *pools, tenure_pool pool, const tenure_stat *reserved) {
      shielded([&] { value_of<Pools>(pools)[MempoolId_t(pool.first, pool.second)] = stats_of(reserved); });
    };
    check_told(api->private_pools(device, add, &pools));
  };
  fill_private_pools(result, fill, 0);
  return result;
}

void Allocator::resetAccumulatedStats(DeviceIndex device) {
  check_device(device);
  if (api->is_open(device))
    check(api->reset_accumulated_statistics(device));
}

void Allocator::resetPeakStats(DeviceIndex device) {
  check_device(device);
  if (api->is_open(device))
    check(api->reset_peak_statistics(device));
}

double Allocator::getMemoryFraction(DeviceIndex device) {
  check_device(device);
  double fraction = 1;
  check(api->memory_fraction(device, &fraction));
  return fraction;
}

void Allocator::setMemoryFraction(double fraction, DeviceIndex device) {
  check_device(device);
  check(api->set_memory_fraction(device, fraction));
}

void Allocator::cacheInfo(DeviceIndex device, size_t *largest) {
  check_device(device);
  // A caller that passes 0 also wants the device's free memory to be considered.
  if (size_t total = 0; *largest == 0)
    C10_CUDA_CHECK(cudaMemGetInfo(largest, &total));
  size_t held = 0;
  if (api->is_open(device))
    check(api->largest_free(device, &held));
  *largest = std::max(*largest, held);
}

void Allocator::attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) {
  const auto tell = [](void *user, const tenure_out_of_memory *error) {
    if (error->rejected)
      return;
    const auto &observe = value_of<caching::OutOfMemoryObserver>(user);
    shielded([&] { observe(error->device, error->requested, std::min(error->allowed, error->total), error->free); });
  };
  check(api->add_out_of_memory_observer(tell, hand_over(std::move(observer))));
}

void Allocator::attachOomRejectionObserver(RejectionObserver observer) {
  const auto tell = [](void *user, const tenure_out_of_memory *error) {
    if (!error->rejected)
      return;
    const auto &observe = value_of<RejectionObserver>(user);
    shielded([&] { observe(error->device, error->requested, error->allocated, error->total); });
  };
  check(api->add_out_of_memory_observer(tell, hand_over(std::move(observer))));
}

std::vector<StreamSegmentSize> Allocator::getExpandableSegmentSizes(DeviceIndex device) {
  std::vector<StreamSegmentSize> sizes;
  for (const auto &segment : snapshot({0, 0}, false).segments)
    if (segment.device == device && segment.is_expandable)
      sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large, segment.total_size);
  return sizes;
}

} // namespace tenure
