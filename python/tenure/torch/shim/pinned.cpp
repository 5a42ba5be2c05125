// Pinned host memory: PyTorch's HostAllocator, implemented by Tenure's.

#include "history.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <iterator>

namespace tenure {

namespace {

using StreamFilter = std::function<bool(c10::Stream)>;

/// Whether this process has pinned memory.
std::atomic<bool> has_allocated{false};

/// Whether this process is forked from one that has pinned memory: it is the parent's, and CUDA does not work here.
std::atomic<bool> is_forked{false};

/// The level of stack traces to keep, and what makes one.
std::atomic<caching::RecordContext> kept_pinned{caching::RecordContext::NEVER};
std::atomic<caching::CreateContextFn> recorder_of_pinned{nullptr};

tenure_object gather_pinned(caching::RecordContext level) {
  if (C10_LIKELY(kept_pinned.load(std::memory_order_relaxed) < level))
    return kNothing;
  const caching::CreateContextFn create = recorder_of_pinned;
  return create == nullptr ? kNothing : hand_over<Context>(create());
}

void release_pinned(void *address) {
  if (address != nullptr && !is_forked.load(std::memory_order_relaxed))
    warned("pinned memory could not be freed",
           [=] { check(api->free_pinned(address, gather_pinned(caching::RecordContext::ALL))); });
}

#if !TENURE_TORCH_BEFORE(14)
using Segment = c10::CachingDeviceAllocator::HostSegmentInfo;

template <typename T> std::vector<T> with_earlier(std::vector<T> all, std::vector<T> earlier) {
  std::move(earlier.begin(), earlier.end(), std::back_inserter(all));
  return all;
}

/// The blocks and events of a snapshot.
struct ToldOfPinned {
  std::vector<Segment> segments;
  std::vector<caching::TraceEntry> events;

  void segment(const tenure_segment &told) {
    Segment segment;
    segment.address = told.address;
    segment.owner_private_pool_id = {told.pool.first, told.pool.second};
    segment.context_when_allocated = context_of(told.context);
    segments.push_back(std::move(segment));
  }

  void block(const tenure_segment_block &told) {
    segments.back().size = told.bytes;
    segments.back().allocated = told.is_allocated;
    segments.back().active = told.is_active;
  }

  void event(const tenure_event &told) {
    events.push_back(entry_of(told, 0));
    events.back().time_.t_ = told.time_us;
  }
};

ToldOfPinned tell_of_pinned(bool traces) {
  ToldOfPinned told;
  const tenure_visitor visitor{
      &told,
      [](void *user, const tenure_segment *it) { shielded([=] { value_of<ToldOfPinned>(user).segment(*it); }); },
      [](void *user, const tenure_segment_block *it) { shielded([=] { value_of<ToldOfPinned>(user).block(*it); }); },
      [](void *user, const tenure_event *it) { shielded([=] { value_of<ToldOfPinned>(user).event(*it); }); },
      [](void *, const tenure_annotation *) {}};
  api->pinned_snapshot(traces, &visitor);
  check_told(TENURE_OK);
  return told;
}
#endif

c10::CachingAllocator::DurationStat duration_of(const tenure_call_times &it) {
  c10::CachingAllocator::DurationStat stat;
  stat.count = it.count;
  stat.total = it.total_us;
  stat.min = it.shortest_us;
  stat.max = it.longest_us;
  return stat;
}

/// Asks PyTorch's filter of a pool, which wants a stream in PyTorch's form.
bool passes(void *filter, int device, void *stream) {
  const auto ask = [&] {
    const auto handle = static_cast<cudaStream_t>(stream);
    return value_of<StreamFilter>(filter)(
        c10::cuda::getStreamFromExternal(handle, static_cast<DeviceIndex>(device)).unwrap());
  };
  return shielded(ask, false);
}

/// The allocator of pinned memory. A block's context is its address. Functions that an older PyTorch does not know are
/// declared without `override`.
class PinnedAllocator final : public at::HostAllocator {
public:
  explicit PinnedAllocator(at::HostAllocator *earlier) : earlier_(earlier) {}

  c10::DataPtr allocate(size_t bytes) override {
    void *address = nullptr;
    if (bytes != 0) {
      int device = -1;
      cudaStream_t stream = nullptr;
      // To find the current stream takes longer than the allocation.
      TORCH_CHECK(!is_forked.load(std::memory_order_relaxed),
                  "memory cannot be pinned in a process that was forked from one that has pinned memory: use the spawn "
                  "start method");
      if (C10_UNLIKELY(api->pinned_depends_on_stream())) {
        device = c10::cuda::current_device();
        stream = c10::cuda::getCurrentCUDAStream(static_cast<DeviceIndex>(device));
      }
      check(api->allocate_pinned(device, bytes, stream, gather_pinned(caching::RecordContext::STATE), &address));
      has_allocated.store(true, std::memory_order_relaxed);
      if (C10_UNLIKELY(any_thrown.load(std::memory_order_relaxed)) && thrown() != nullptr) {
        // A pool's filter has thrown.
        api->free_pinned(address, kNothing);
        fail(TENURE_OK);
      }
    }
    return {address, address, &release_pinned, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release_pinned; }

  void copy_data(void *target, const void *source, size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }

  bool record_event(void *address, void *context, c10::Stream stream) override {
    const auto handle = c10::cuda::CUDAStream(stream).stream();
    if (!is_forked)
      for (void *block : {context, address})
        if (block != nullptr && api->record_stream_pinned(block, stream.device_index(), handle)) {
          check_told(TENURE_OK);
          return true;
        }
    // What was pinned before the installation.
    return earlier_->record_event(address, context, stream);
  }

  void empty_cache() override {
    earlier_->empty_cache();
    if (is_forked)
      return;
    end_failed_captures();
    check(api->release_cached_pinned());
  }

  at::HostStats get_stats() override {
    if (is_forked)
      return earlier_->get_stats();
    tenure_pinned_statistics figures;
    api->pinned_statistics(&figures);
    at::HostStats stats;
#if TENURE_TORCH_BEFORE(10)
    stats.allocation = stat_of(figures.blocks);
    stats.segment = stat_of(figures.chunks);
    stats.allocated_bytes = stat_of(figures.used_bytes);
    stats.reserved_bytes = stat_of(figures.pinned_bytes);
#else
    stats.active_requests = stat_of(figures.blocks);
    stats.active_bytes = stat_of(figures.used_bytes);
    stats.allocations = stat_of(figures.chunks);
    stats.allocated_bytes = stat_of(figures.pinned_bytes);
    stats.bucket_allocation.assign(std::begin(figures.chunks_by_size), std::end(figures.chunks_by_size));
#endif
    stats.host_alloc_time = duration_of(figures.pinning);
    stats.host_free_time = duration_of(figures.unpinning);
    stats.num_host_alloc = figures.pinning.count;
    stats.num_host_free = figures.unpinning.count;
    return stats;
  }

  void reset_accumulated_stats() override { api->reset_accumulated_pinned_statistics(); }

  void reset_peak_stats() override { api->reset_peak_pinned_statistics(); }

  virtual void begin_allocate_to_pool(MempoolId_t pool, StreamFilter filter) {
    check(api->begin_pinned_pool(c10::cuda::current_device(), {pool.first, pool.second}, passes,
                                 hand_over(std::move(filter))));
  }

  virtual void end_allocate_to_pool(MempoolId_t pool) { api->end_pinned_pool({pool.first, pool.second}); }

  virtual void release_pool(MempoolId_t pool) { api->release_pinned_pool({pool.first, pool.second}); }

#if !TENURE_TORCH_BEFORE(14)
  void record_history(bool enabled, caching::CreateContextFn create, size_t max_entries, caching::RecordContext when,
                      bool clear) override {
    earlier_->record_history(enabled, create, max_entries, when, clear);
    const tenure_recording what{std::max<size_t>(max_entries, 1), static_cast<int>(when), nullptr, 0};
    // Gathering of stack traces stops before recording does, and begins after it.
    kept_pinned = caching::RecordContext::NEVER;
    check(api->record_pinned_history(c10::cuda::current_device(), enabled ? &what : nullptr, clear));
    recorder_of_pinned = enabled ? create : nullptr;
    kept_pinned = enabled ? when : caching::RecordContext::NEVER;
    is_recording_ = enabled;
  }

  bool is_history_enabled() const override { return is_recording_; }

  std::vector<Segment> get_segments() override {
    return with_earlier(tell_of_pinned(false).segments, earlier_->get_segments());
  }

  std::vector<caching::TraceEntry> get_traces() override {
    return with_earlier(tell_of_pinned(true).events, earlier_->get_traces());
  }

  // The earlier allocator keeps what programs register by themselves.

  void record_external_register(void *address, size_t bytes) override {
    earlier_->record_external_register(address, bytes);
  }

  void record_external_unregister(void *address) override { earlier_->record_external_unregister(address); }
#endif

private:
  at::HostAllocator *earlier_;
  std::atomic<bool> is_recording_{false};
};

} // namespace

void install_pinned() {
  pthread_atfork(nullptr, nullptr, [] { is_forked = has_allocated.load(); });
  // Never destroyed: blocks are freed until the process ends.
  static auto &allocator = *new PinnedAllocator(at::getHostAllocator(at::kCUDA));
  at::setHostAllocator(at::kCUDA, &allocator, 1);
}

} // namespace tenure
