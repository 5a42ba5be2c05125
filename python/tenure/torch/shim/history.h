// What goes with blocks and events, and events as PyTorch has them.
#pragma once

#include <string>

#include "allocator.h"

namespace tenure {

/// Where in the program a block or event came from, as PyTorch's recorder tells.
using Context = std::shared_ptr<c10::GatheredContext>;

/// What the program said beside.
struct Note {
  std::string compile_context = "N/A";
  std::string user_metadata;
};

/// The context that Tenure kept, which may be none.
inline Context context_of(void *pointer) { return pointer == nullptr ? nullptr : value_of<Context>(pointer); }

/// The event, dated by `time`.
caching::TraceEntry entry_of(const tenure_event &event, c10::approx_time_t time);

} // namespace tenure
