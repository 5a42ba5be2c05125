// Stack traces and notes of blocks and events, and the conversion of events to PyTorch's.
#pragma once

#include <string>

#include "allocator.h"

namespace tenure {

/// The stack trace of a block or event, made by PyTorch's recorder.
using Context = std::shared_ptr<c10::GatheredContext>;

/// Texts that the program adds to a thread's events.
struct Note {
  std::string compile_context = "N/A";
  std::string user_metadata;
};

/// Returns the stack trace that Tenure kept, which may be null.
inline Context context_of(void *pointer) { return pointer == nullptr ? nullptr : value_of<Context>(pointer); }

/// Returns the event as PyTorch's, with the time `time`.
caching::TraceEntry entry_of(const tenure_event &event, c10::approx_time_t time);

} // namespace tenure
