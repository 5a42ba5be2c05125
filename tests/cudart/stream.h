// Streams, and the work that is put on them.
//
// Work is done in the call that submits it. A stream only has the times of a real one: it is busy until `done_at`,
// which advances with `torch.cuda._sleep` only, or with all work that takes time (see `slowness`). Events copy that
// time; waits and queries compare it with the clock.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

namespace simulated {

struct Capture;
struct Device;

/// Nanoseconds of a clock that all processes share. If TENURE_CUDART_CLOCK is `virtual`, the clock advances only while
/// a thread waits.
using Time = int64_t;

Time now();

/// Waits until `time` has come.
void sleep_until(Time time);

/// Returns how many times slower than an H200 the devices are (TENURE_CUDART_SLOWNESS); 0 if their work takes no time.
/// Devices whose work takes time do not move or fill large ranges: a program then needs far less memory than they have.
double slowness();

/// Returns whether a range of so many bytes is moved and filled.
bool has_content(size_t bytes);

/// Returns the time in which a device reads or writes that many bytes of its own memory, or copies them from or to the
/// host.
Time memory_time(size_t bytes);
Time link_time(size_t bytes);

struct Stream {
  Device *device = nullptr;
  unsigned flags = 0;
  int priority = 0;
  /// The time when the work put on it so far is done.
  std::atomic<Time> done_at{0};
  /// The capture that records the stream, if any.
  std::shared_ptr<Capture> capture;
};

/// An error that is thrown by work that touches memory without the right to. The device's context is lost.
struct IllegalAddress {};

/// A function that does some work, and returns the time that it takes on the device.
using Work = std::function<Time()>;

/// Returns the stream of a handle; the three default streams of the current device are one. Null if there is none.
Stream *stream(CUstream handle);

/// Does `work` in the order of a stream, or adds it to the graph into which the stream is captured.
CUresult submit(CUstream handle, Work work);

/// Does `work` at once, and adds its time to the stream's.
void run(Stream &stream, const Work &work);

/// Returns the time until which some stream of the device is busy.
Time device_done_at(Device &device);

/// Ends the capture of all streams that `capture` records.
void release_captured(const Capture *capture);

} // namespace simulated
