// Streams, and the work that is put on them.
//
// Work is done in the call that submits it. What a stream has of a real one is time: it is busy until `done_at`, which
// only `torch.cuda._sleep` moves, or all work that takes time (see `slowness`). Events take that time over, waits and
// queries look at it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace simulated {

struct Capture;
struct Device;

/// Nanoseconds of a clock that all processes share; where TENURE_CUDART_CLOCK is `virtual`, of one that stands still
/// but for who waits.
using Time = int64_t;

Time now();

/// Blocks until `time` has come.
void sleep_until(Time time);

/// How many times slower than an H200 the devices are (TENURE_CUDART_SLOWNESS); 0, if they take no time for anything.
/// Devices that take time do not move or fill what is large: a program then needs far less memory than they have.
double slowness();

/// Whether so many bytes are moved and filled.
bool has_content(size_t bytes);

/// How long a device takes to read or write so many bytes of its own memory, or to move as many to the host or from there.
Time memory_time(size_t bytes);
Time link_time(size_t bytes);

struct Stream {
  Device *device = nullptr;
  unsigned flags = 0;
  int priority = 0;
  /// When the work put on it so far is done.
  std::atomic<Time> done_at{0};
  /// What it is captured by, if it is.
  std::shared_ptr<Capture> capture;
};

/// Thrown by work that touches what it must not. The device's context is lost.
struct IllegalAddress {};

/// Does something, and returns how long that takes on the device.
using Work = std::function<Time()>;

/// The stream behind a handle; the three default streams of the current device are one. Null if there is none.
Stream *stream(CUstream handle);

/// Does `work` in the order of a stream, or leaves it to the graph that the stream is captured into.
CUresult submit(CUstream handle, Work work);

/// Does `work` at once, and counts its time as the stream's.
void run(Stream &stream, const Work &work);

/// Until when some stream of the device is busy.
Time device_done_at(Device &device);

/// All streams that are captured by `capture` no longer are.
void release_captured(const Capture *capture);

} // namespace simulated
