// The history of events, with their stack traces and notes.

#include "history.h"

#include <c10/cuda/CUDAFunctions.h>

#include <mutex>

namespace tenure {

namespace {

using caching::CreateContextFn;
using caching::RecordContext;
using caching::TraceEntry;

std::atomic<bool> recording{false};
std::atomic<RecordContext> kept{RecordContext::NEVER};
std::atomic<CreateContextFn> recorder{nullptr};

thread_local std::vector<std::string> compile_contexts;
thread_local std::string user_metadata;

/// Sets the note that this thread adds to its events in Tenure.
void set_note(const std::string &metadata) {
  Note note;
  if (!compile_contexts.empty())
    note.compile_context = compile_contexts.back();
  note.user_metadata = metadata;
  api->set_note(hand_over(std::move(note)));
}

void renew_note() { set_note(user_metadata); }

} // namespace

tenure_object gather(RecordContext level) {
  if (C10_LIKELY(kept.load(std::memory_order_relaxed) < level))
    return kNothing;
  const CreateContextFn create = recorder;
  return create == nullptr ? kNothing : hand_over<Context>(create());
}

TraceEntry entry_of(const tenure_event &event, c10::approx_time_t time) {
  static const Note none;
  const Note &note = event.note == nullptr ? none : value_of<Note>(event.note);
  TraceEntry entry(static_cast<TraceEntry::Action>(event.action), static_cast<DeviceIndex>(event.device), event.address,
                   event.bytes, static_cast<cudaStream_t>(event.stream),
                   MempoolId_t(event.pool.first, event.pool.second), time, context_of(event.context),
                   note.compile_context);
  set_user_metadata(entry, note.user_metadata);
  return entry;
}

bool Allocator::isHistoryEnabled() { return recording; }

void Allocator::recordHistory(bool enabled, CreateContextFn create, size_t max_entries, RecordContext when, bool clear,
                              const std::vector<std::string> &skip_actions) {
  TORCH_CHECK(when == RecordContext::NEVER || create != nullptr, "contexts cannot be recorded without a recorder");
  std::vector<int> skip;
  for (const auto &action : skip_actions)
    skip.push_back(action_of(action));
  const tenure_recording what{std::max<size_t>(max_entries, 1), static_cast<int>(when), skip.data(), skip.size()};
  // Serializes callers, so that one caller's settings hold as a whole.
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  // Gathering of stack traces stops before recording does, and begins after it.
  kept = RecordContext::NEVER;
  check(api->record_history(enabled ? &what : nullptr, clear));
  recorder = enabled ? create : nullptr;
  kept = enabled ? when : RecordContext::NEVER;
  recording = enabled;
}

void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) {
  DeviceIndex device = 0;
  C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
  if (!isHistoryEnabled() || !api->is_open(device))
    return;
  std::vector<const char *> texts;
  for (const auto &[name, value] : metadata) {
    texts.push_back(name.c_str());
    texts.push_back(value.c_str());
  }
  check(api->annotate(device, texts.data(), metadata.size()));
}

void Allocator::pushCompileContext(std::string &context) {
  compile_contexts.push_back(context);
  renew_note();
}

void Allocator::popCompileContext() {
  if (compile_contexts.empty())
    return;
  compile_contexts.pop_back();
  renew_note();
}

void Allocator::setUserMetadata(const std::string &metadata) {
  user_metadata = metadata;
  renew_note();
}

std::string Allocator::getUserMetadata() { return user_metadata; }

std::shared_ptr<c10::GatheredContext> Allocator::getContextForPointer(const void *address) {
  Context context;
  const auto keep = [](void *kept, void *context) { value_of<Context>(kept) = context_of(context); };
  const tenure_status status = api->context(const_cast<void *>(address), keep, &context);
  if (status != TENURE_UNKNOWN_ADDRESS)
    check(status);
  return context;
}

void Allocator::annotateMemory(const void *address, const std::string &metadata) {
  if (!isHistoryEnabled())
    return;
  auto context = gather(RecordContext::ALLOC);
  set_note(metadata);
  const tenure_status status = api->annotate_block(const_cast<void *>(address), context);
  renew_note();
  TORCH_CHECK(status != TENURE_UNKNOWN_ADDRESS, "annotateMemory: no live allocation found at pointer ", address);
  check(status);
}

void Allocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {
  const auto tell = [](void *user, const tenure_event *event) {
    // Events also come from frees, which must not fail.
    warned("a tracker of allocations failed",
           [&] { value_of<caching::AllocatorTraceTracker>(user)(entry_of(*event, c10::getApproximateTime())); });
  };
  check(api->add_tracker(tell, hand_over(std::move(tracker))));
}

} // namespace tenure
