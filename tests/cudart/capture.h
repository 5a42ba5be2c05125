// Captures of streams into graphs.
#pragma once

#include <cuda.h>

#include <memory>
#include <thread>
#include <vector>

#include "stream.h"

namespace simulated {

/// The captured work, in the order in which it was submitted.
struct Graph : std::vector<Work> {
  /// The program's objects that live as long as the graph and its executable graph.
  std::vector<std::shared_ptr<void>> retained;
};

struct Capture {
  unsigned long long id;
  CUstreamCaptureMode mode;
  CUstream origin;
  std::thread::id thread = std::this_thread::get_id();
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool ended = false;
  /// Whether a call was made that a capture forbids.
  bool broken = false;
};

/// The stream on which the thread launches a graph, for work of the graph that waits.
extern thread_local Stream *launched_on;

/// Checks whether the thread may make a call that captures forbid. If not, breaks the captures that forbid it.
CUresult check_capture();

/// Breaks a capture because of a call that no capture allows.
CUresult break_capture(Capture &capture);

} // namespace simulated
