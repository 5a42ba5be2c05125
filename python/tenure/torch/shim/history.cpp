// What happened.

#include "allocator.h"

namespace tenure {

tenure_object gather(caching::RecordContext level) { return kNothing; }

bool Allocator::isHistoryEnabled() { return false; }

void Allocator::recordHistory(bool enabled, caching::CreateContextFn recorder, size_t max_entries,
                              caching::RecordContext when, bool clear, const std::vector<std::string> &skip_actions) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "recordHistory");
}
void Allocator::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) {}
void Allocator::pushCompileContext(std::string &context) {}
void Allocator::popCompileContext() {}
void Allocator::setUserMetadata(const std::string &metadata) {}
std::string Allocator::getUserMetadata() { return ""; }
void Allocator::attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) {}

} // namespace tenure
