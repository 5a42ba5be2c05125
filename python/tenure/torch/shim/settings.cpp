// PyTorch's own settings of its allocator: PYTORCH_ALLOC_CONF, and changes at run time.

#include "allocator.h"

#include <algorithm>
#include <limits>
#include <mutex>

namespace tenure {

namespace {

/// A setting that has no effect in Tenure. Warns once if it is set.
class Unused {
public:
  explicit Unused(const char *name) : name_(name) {}

  void warn_if(bool is_set) {
    if (is_set && !std::exchange(warned_, true))
      TORCH_WARN("PYTORCH_ALLOC_CONF: ", name_, " changes nothing, since Tenure's allocator has no use for it");
  }

private:
  const char *name_;
  bool warned_ = false;
};

/// A setting that Tenure has too. Sets it in Tenure only when its value changes.
class Known {
public:
  Known(tenure_setting setting, const char *name, std::vector<double> values)
      : setting_(setting), values_(std::move(values)), unused_(name) {}

  void set(std::vector<double> wanted) {
    if (wanted == values_)
      return;
    bool applies = false;
    check(api->tune(setting_, wanted.data(), wanted.size(), &applies));
    values_ = std::move(wanted);
    unused_.warn_if(!applies);
  }

private:
  tenure_setting setting_;
  std::vector<double> values_;
  Unused unused_;
};

std::vector<double> divisions() {
  const auto &set = Settings::roundup_power2_divisions();
  std::vector<double> values(set.begin(), set.end());
  values.resize(16);
  return values;
}

double max_split_bytes() {
  const size_t bytes = Settings::max_split_size();
  return bytes == std::numeric_limits<size_t>::max() ? -1 : static_cast<double>(bytes);
}

/// Returns the fraction of each device that this process may hold once CUDA starts.
double opened_with() {
  double fraction = 1;
  check(api->memory_fraction(0, &fraction));
  return fraction;
}

/// Limits the memory that the process may hold. PyTorch reads that setting once, when CUDA starts.
void limit_process() {
  static const double installed = opened_with();
  // The lower of the two limits holds.
  const double limit = std::min(installed, process_fraction());
  if (!caching::get()->initialized() && limit != opened_with())
    check(api->set_memory_fraction(-1, limit));
}

/// Whether this thread is in PyTorch's parser of settings. For `backend:native`, whose place this allocator takes, the
/// parser requires the allocator's name to be "native".
thread_local bool in_parser = false;

void change_settings(const std::function<void()> &change) {
  struct Parsing {
    Parsing() { in_parser = true; }
    ~Parsing() { in_parser = false; }
  };
  {
    const Parsing parsing;
    change();
  }
  apply_settings();
}

} // namespace

std::string Allocator::name() { return in_parser ? "native" : "tenure"; }

void read_settings() {
  Settings::max_split_size();
  CUDAAllocatorConfig::instance();
}

void apply_settings() {
  static std::mutex mutex;
  static Known rounding(TENURE_ROUNDUP_POWER2_DIVISIONS, "roundup_power2_divisions", std::vector<double>(16));
  static Known split(TENURE_MAX_SPLIT_BYTES, "max_split_size_mb", {-1});
  static Known collection(TENURE_GARBAGE_COLLECTION_THRESHOLD, "garbage_collection_threshold", {0});
  static Known expandable(TENURE_EXPANDABLE_SEGMENTS, "expandable_segments", {0});
  static Unused lock_release("release_lock_on_cudamalloc"), stream_reuse("graph_capture_record_stream_reuse");
  static Unused segment("large_segment_size_mb"), non_split("max_non_split_rounding_mb");
  static Known rejection(TENURE_REJECT_ABOVE, "throw_on_cudamalloc_oom", {-1});
  static Unused reserve("expandable_segments_reserve"), reserve_by_class("expandable_segments_reserve_by_class");
  const std::lock_guard<std::mutex> lock(mutex);
  rounding.set(divisions());
  split.set({max_split_bytes()});
  collection.set({Settings::garbage_collection_threshold()});
  expandable.set({Settings::use_expandable_segments() ? 1.0 : 0.0});
  lock_release.warn_if(CUDAAllocatorConfig::release_lock_on_cudamalloc());
  stream_reuse.warn_if(reuses_recorded_streams());
  segment.warn_if(large_segment_size() != kLargeSegment);
  rejection.set({rejects_early<CUDAAllocatorConfig>(0) ? process_fraction() : -1});
  const std::string given = Settings::last_allocator_settings();
  reserve.warn_if(has_setting(given, "expandable_segments_reserve"));
  reserve_by_class.warn_if(has_setting(given, "expandable_segments_reserve_by_class"));
  // Its default is the size of a segment.
  non_split.warn_if(Settings::max_non_split_rounding_size() != large_segment_size());
  limit_process();
}

void follow_settings() { follow_changes(change_settings); }

} // namespace tenure
