// Snapshots of segments, blocks, events and settings.

#include "history.h"

namespace tenure {

namespace {

/// A snapshot that is assembled from Tenure's callbacks.
struct Told {
  caching::SnapshotInfo snapshot;

  void segment(const tenure_segment &told) {
    caching::SegmentInfo segment;
    segment.device = static_cast<DeviceIndex>(told.device);
    set_registration_counter(segment, told.made);
    segment.address = told.address;
    segment.stream = static_cast<cudaStream_t>(told.stream);
    segment.is_large = told.is_large;
    segment.is_expandable = told.is_expandable;
    segment.owner_private_pool_id = {told.pool.first, told.pool.second};
    segment.context_when_allocated = context_of(told.context);
    snapshot.segments.push_back(std::move(segment));
  }

  void block(const tenure_segment_block &told) {
    caching::BlockInfo block;
    block.size = told.bytes;
    block.requested_size = told.requested;
    block.allocated = told.is_allocated;
    block.active = told.is_active;
    block.context_when_allocated = context_of(told.context);
    auto &segment = snapshot.segments.back();
    segment.total_size += block.size;
    if (block.allocated)
      segment.allocated_size += block.size;
    if (block.active) {
      segment.active_size += block.size;
      segment.requested_size += block.requested_size;
    }
    segment.blocks.push_back(std::move(block));
  }

  void event(const tenure_event &told) {
    auto entry = entry_of(told, 0);
    entry.time_.t_ = told.time_us;
    snapshot.device_traces.back().push_back(std::move(entry));
  }

  void annotation(const tenure_annotation &told) {
    AnnotationEntry annotation(static_cast<DeviceIndex>(told.device), 0);
    annotation.time_.t_ = told.time_us;
    for (size_t pair = 0; pair < told.count; pair++)
      annotation.recordUserMetadata(told.metadata[2 * pair], told.metadata[2 * pair + 1]);
    snapshot.external_annotations.push_back(std::move(annotation));
  }
};

caching::AllocatorConfigInfo settings() {
  caching::AllocatorConfigInfo info{};
  info.garbage_collection_threshold = Settings::garbage_collection_threshold();
  info.max_split_size = Settings::max_split_size();
  info.pinned_num_register_threads = CUDAAllocatorConfig::pinned_num_register_threads();
  info.expandable_segments = Settings::use_expandable_segments();
  info.release_lock_on_malloc = CUDAAllocatorConfig::release_lock_on_cudamalloc();
  info.pinned_use_host_register = CUDAAllocatorConfig::pinned_use_cuda_host_register();
  set_stream_reuse(info, reuses_recorded_streams());
  PinnedLimits::set<Settings>(info, 0);
  info.last_allocator_settings = Settings::last_allocator_settings();
  info.roundup_power2_divisions = Settings::roundup_power2_divisions();
  return info;
}

} // namespace

caching::SnapshotInfo Allocator::snapshot(MempoolId_t pool, bool include_traces) {
  Told told;
  const tenure_visitor visitor{
      &told,
      [](void *told, const tenure_segment *it) { shielded([&] { value_of<Told>(told).segment(*it); }); },
      [](void *told, const tenure_segment_block *it) { shielded([&] { value_of<Told>(told).block(*it); }); },
      [](void *told, const tenure_event *it) { shielded([&] { value_of<Told>(told).event(*it); }); },
      [](void *told, const tenure_annotation *it) { shielded([&] { value_of<Told>(told).annotation(*it); }); },
  };
  for (int device = 0; device < device_count_; device++) {
    told.snapshot.device_traces.emplace_back();
    if (api->is_open(device))
      check_told(api->snapshot(device, {pool.first, pool.second}, include_traces, &visitor));
  }
  told.snapshot.config_metadata = settings();
  return std::move(told.snapshot);
}

} // namespace tenure
