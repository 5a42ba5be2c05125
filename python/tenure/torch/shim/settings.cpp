// PyTorch's own settings of its allocator: PYTORCH_ALLOC_CONF, and what is set while the program runs.

#include "allocator.h"

#include <limits>
#include <mutex>

namespace tenure {

namespace {

/// Names settings once that change nothing.
void warn_of(const char *setting) {
  TORCH_WARN("PYTORCH_ALLOC_CONF: ", setting, " changes nothing, since Tenure's allocator has no use for it");
}

/// The value that a setting had, to be set only when it changes.
struct Known {
  std::vector<double> values;
  bool warned = false;

  void set(tenure_setting setting, const char *name, std::vector<double> wanted) {
    if (wanted == values)
      return;
    bool applies = false;
    check(api->tune(setting, wanted.data(), wanted.size(), &applies));
    values = std::move(wanted);
    if (!applies && !warned) {
      warned = true;
      warn_of(name);
    }
  }
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

void apply_settings() {
  static std::mutex mutex;
  static Known rounding{std::vector<double>(16)}, split{{-1}}, collection{{0}}, expandable{{0}};
  static bool releases_lock = false, reuses = false;
  const std::lock_guard<std::mutex> lock(mutex);
  rounding.set(TENURE_ROUNDUP_POWER2_DIVISIONS, "roundup_power2_divisions", divisions());
  split.set(TENURE_MAX_SPLIT_BYTES, "max_split_size_mb", {max_split_bytes()});
  collection.set(TENURE_GARBAGE_COLLECTION_THRESHOLD, "garbage_collection_threshold",
                 {Settings::garbage_collection_threshold()});
  expandable.set(TENURE_EXPANDABLE_SEGMENTS, "expandable_segments",
                 {Settings::use_expandable_segments() ? 1.0 : 0.0});
  if (CUDAAllocatorConfig::release_lock_on_cudamalloc() && !std::exchange(releases_lock, true))
    warn_of("release_lock_on_cudamalloc");
  if (reuses_recorded_streams() && !std::exchange(reuses, true))
    warn_of("graph_capture_record_stream_reuse");
}

/// Whether this thread is in PyTorch's parser of settings. That wants `backend:native`, whose place this allocator has,
/// to be the allocator's name.
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

void follow_settings() {
  apply_settings();
  // Of two limits, the narrower holds.
  double installed = 1;
  check(api->memory_fraction(0, &installed));
  if (const double fraction = process_fraction(); fraction < installed)
    check(api->set_memory_fraction(-1, fraction));
  follow_changes(change_settings);
}

} // namespace tenure
