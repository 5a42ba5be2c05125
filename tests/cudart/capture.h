// Captures of streams into graphs.
#pragma once

#include <cuda.h>

#include <memory>
#include <thread>
#include <vector>

#include "stream.h"

namespace simulated {

/// The work that was captured, in the order in which it was submitted.
struct Graph : std::vector<Work> {
  /// Objects of the program that live as long as the graph and what it is launched by.
  std::vector<std::shared_ptr<void>> retained;
};

struct Capture {
  unsigned long long id;
  CUstreamCaptureMode mode;
  CUstream origin;
  std::thread::id thread = std::this_thread::get_id();
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  bool ended = false;
  /// A call that a capture does not bear was made.
  bool broken = false;
};

/// The stream that the thread launches a graph on, for work of the graph that waits.
extern thread_local Stream *launched_on;

/// Whether the thread may make a call that a capture does not bear: if not, the captures that forbid it are broken.
CUresult check_capture();

/// Breaks a capture by a call that no capture bears.
CUresult break_capture(Capture &capture);

} // namespace simulated
