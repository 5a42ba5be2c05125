// The differences between the versions of PyTorch, from 2.8 on. The rest of the shim is written for 2.11.
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/version.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#define TENURE_TORCH_BEFORE(minor) (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < (minor))

namespace tenure {

using c10::DeviceIndex;
namespace caching = c10::cuda::CUDACachingAllocator;
using caching::CUDAAllocatorConfig;

#if TENURE_TORCH_BEFORE(9)
using c10::cuda::MempoolId_t;
#else
using c10::MempoolId_t;
#endif

/// The annotation type, which is in another namespace since 2.11.
using AnnotationEntry = decltype(caching::SnapshotInfo::external_annotations)::value_type;

#if TENURE_TORCH_BEFORE(10)
struct StreamSegmentSize {
  StreamSegmentSize(cudaStream_t stream, bool is_small_pool, size_t total_size)
      : stream(stream), is_small_pool(is_small_pool), total_size(total_size) {}
  cudaStream_t stream;
  bool is_small_pool;
  size_t total_size;
};
#else
using caching::StreamSegmentSize;
#endif

/// A callback that gets the device, the bytes requested, the bytes allocated, and the bytes of the whole device.
using RejectionObserver = std::function<void(int64_t, size_t, size_t, size_t)>;

/// PyTorch's CUDAAllocator with the functions of 2.11 and later. Older functions call their newer form. Functions that
/// an older PyTorch does not know are declared all the same.
class Interface : public caching::CUDAAllocator {
public:
#if TENURE_TORCH_BEFORE(11)
  virtual caching::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) = 0;
  caching::SnapshotInfo snapshot(MempoolId_t pool) final { return snapshot(pool, true); }

  virtual void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                             caching::RecordContext when, bool clear, const std::vector<std::string> &skip_actions) = 0;
  void recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries, caching::RecordContext when,
                     bool clear) final {
    recordHistory(enabled, recorder, max_entries, when, clear, {});
  }

  virtual void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> source) = 0;
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator *source) final {
    // Not owned: the program keeps it alive.
    createOrIncrefPool(device, pool, std::shared_ptr<CUDAAllocator>(std::shared_ptr<void>(), source));
  }

  virtual void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use_on_oom) = 0;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) final { setUseOnOOM(device, pool, true); }
#endif
#if TENURE_TORCH_BEFORE(10)
  virtual std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) = 0;
  virtual void setUserMetadata(const std::string &metadata) = 0;
  virtual std::string getUserMetadata() = 0;
  virtual void setNoSplit(DeviceIndex device, MempoolId_t pool) = 0;
#endif

  // Functions that came after 2.11. They are declared without `override`, so that they also compile under an older
  // PyTorch, which never calls them.

  /// Adds an observer of the requests that throw_on_cudamalloc_oom refuses.
  virtual void attachOomRejectionObserver(RejectionObserver observer) = 0;
  /// Records that a capture on a device begins or ends, on the thread that began to allocate to its pool.
  virtual void markCaptureBegin(DeviceIndex device) = 0;
  virtual void markCaptureEnd(DeviceIndex device) = 0;
  virtual bool supportsUserMetadata() { return true; }
  virtual std::shared_ptr<c10::GatheredContext> getContextForPointer(const void *address) = 0;
  virtual void annotateMemory(const void *address, const std::string &metadata) = 0;
};

/// Returns whether PyTorch reports where captures begin and end. If not, every use of a private pool may be one.
template <typename Base> constexpr auto marks_captures(int) -> decltype(&Base::markCaptureBegin, true) { return true; }
template <typename Base> constexpr bool marks_captures(long) { return false; }

/// Fills in the reserved bytes of private pools, where statistics have them: calls `fill` with the map.
template <typename Statistics, typename Fill>
auto fill_private_pools(Statistics &statistics, Fill fill, int)
    -> decltype(statistics.reserved_bytes_by_private_pools, void()) {
  fill(statistics.reserved_bytes_by_private_pools);
}
template <typename Statistics, typename Fill> void fill_private_pools(Statistics &, Fill, long) {}

/// Sets the number of requests that throw_on_cudamalloc_oom refused, where statistics have it.
template <typename Statistics>
auto set_oom_rejections(Statistics &statistics, int64_t count, int) -> decltype(statistics.num_oom_rejections, void()) {
  statistics.num_oom_rejections = count;
}
template <typename Statistics> void set_oom_rejections(Statistics &, int64_t, long) {}

/// The limits of PyTorch's own cache of pinned memory.
struct PinnedLimits {
  template <typename From, typename Info>
  static auto set(Info &info, int) -> decltype(info.max_round_threshold = From::pinned_max_round_threshold(), void()) {
    info.max_round_threshold = From::pinned_max_round_threshold();
    info.max_cached_size = From::pinned_max_cached_size();
  }
  template <typename From, typename Info> static void set(Info &, long) {}
};

/// Returns the setting throw_on_cudamalloc_oom.
template <typename Config> auto rejects_early(int) -> decltype(Config::throw_on_cudamalloc_oom()) {
  return Config::throw_on_cudamalloc_oom();
}
template <typename Config> bool rejects_early(long) { return false; }

/// Returns whether a setting is given. PyTorch shows some settings, such as expandable_segments_reserve, only in the
/// text of all.
inline bool has_setting(const std::string &settings, const std::string &name) {
  for (size_t at = settings.find(name); at != std::string::npos; at = settings.find(name, at + 1))
    if (const size_t end = at + name.size(); end < settings.size() && settings[end] == ':')
      return true;
  return false;
}

/// Returns the number of an action that the history leaves out. Before 2.11 no action can be left out.
inline int action_of([[maybe_unused]] const std::string &name) {
#if TENURE_TORCH_BEFORE(11)
  TORCH_CHECK(false, "PyTorch ", TORCH_VERSION, " leaves no action out");
#else
  return c10::CachingDeviceAllocator::parseTraceEntryAction(name);
#endif
}

inline void set_user_metadata([[maybe_unused]] caching::TraceEntry &entry, [[maybe_unused]] const std::string &text) {
#if !TENURE_TORCH_BEFORE(10)
  entry.user_metadata_ = text;
#endif
}

inline void set_registration_counter([[maybe_unused]] caching::SegmentInfo &segment, [[maybe_unused]] size_t counter) {
#if !TENURE_TORCH_BEFORE(11)
  segment.registration_counter = static_cast<int32_t>(counter);
#endif
}

inline void set_stream_reuse([[maybe_unused]] caching::AllocatorConfigInfo &info, [[maybe_unused]] bool on) {
#if !TENURE_TORCH_BEFORE(9)
  info.graph_capture_record_stream_reuse = on;
#endif
}

/// Returns the setting graph_capture_record_stream_reuse.
inline bool reuses_recorded_streams() {
#if TENURE_TORCH_BEFORE(9)
  return false;
#else
  return CUDAAllocatorConfig::graph_capture_record_stream_reuse();
#endif
}

/// Returns the fraction of each device that PyTorch's settings allow this process.
inline double process_fraction() {
#if TENURE_TORCH_BEFORE(10)
  return 1;
#else
  return CUDAAllocatorConfig::per_process_memory_fraction();
#endif
}

/// PyTorch's settings for accelerators of all kinds, with the functions of 2.11.
#if TENURE_TORCH_BEFORE(10)
struct Settings {
  static std::vector<size_t> roundup_power2_divisions() { return CUDAAllocatorConfig::roundup_power2_divisions(); }
  static size_t max_split_size() { return CUDAAllocatorConfig::max_split_size(); }
  static size_t max_non_split_rounding_size() { return CUDAAllocatorConfig::max_non_split_rounding_size(); }
  static double garbage_collection_threshold() { return CUDAAllocatorConfig::garbage_collection_threshold(); }
  static bool use_expandable_segments() { return CUDAAllocatorConfig::expandable_segments(); }
  static std::string last_allocator_settings() { return CUDAAllocatorConfig::last_allocator_settings(); }
};
#else
using Settings = c10::CachingAllocator::AcceleratorAllocatorConfig;
#endif

/// The default of large_segment_size_mb, in bytes.
inline constexpr size_t kLargeSegment = size_t{20} << 20;

/// Returns the setting large_segment_size_mb, in bytes.
inline size_t large_segment_size() {
#if TENURE_TORCH_BEFORE(11)
  return kLargeSegment;
#else
  return Settings::large_segment_size();
#endif
}

/// Makes every change of settings go through `around`, which runs the change. Before 2.10, PyTorch does not report
/// changes.
inline void follow_changes([[maybe_unused]] void (*around)(const std::function<void()> &change)) {
#if TENURE_TORCH_BEFORE(10)
#elif TENURE_TORCH_BEFORE(11)
  // Replaces PyTorch's own hook, which does the same and no more.
  const auto parse = [around](const std::string &settings) {
    around([&] { CUDAAllocatorConfig::instance().parseArgs(settings); });
  };
  Settings::registerDeviceConfigParserHook(parse, {});
#else
  auto &hook = Settings::getConfigParserHook();
  hook = [before = hook, around](const std::string &settings) {
    around([&] {
      if (before)
        before(settings);
    });
  };
#endif
}

} // namespace tenure
