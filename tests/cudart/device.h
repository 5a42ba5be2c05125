// The simulated devices, and the device that a thread uses.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <set>

#include "stream.h"

namespace simulated {

struct Device {
  int number;
  size_t capacity;
  /// The bytes of chunks that this process made and that still exist.
  std::atomic<size_t> used{0};
  /// Whether the primary context exists.
  std::atomic<bool> active{false};
  /// The error that lost the context, if any: from then on, streams and events return it.
  std::atomic<CUresult> failure{CUDA_SUCCESS};
  Stream null_stream;
  /// The devices whose memory this one may access.
  std::set<int> peers;

  Device(int number, size_t capacity) : number(number), capacity(capacity) { null_stream.device = this; }
  CUcontext context() { return reinterpret_cast<CUcontext>(this); }
};

/// Returns all devices: TENURE_CUDART_DEVICES of them (default 1), each of TENURE_CUDART_CAPACITY bytes (8 GiB).
std::deque<Device> &devices();

/// Returns the device of that number, or null.
Device *device(int number);

/// Returns the device of the calling thread, which starts as number 0, and makes its context; null if there is no
/// device.
Device *current_device();

/// Returns the device with this context, or null.
Device *device_of(CUcontext context);

/// Returns the lock of everything that has no lock of its own. It is never held during a wait.
std::mutex &state();

/// Looks up a function of the driver as the real runtime does: by the loader, and from there on by the driver. Another
/// library may have put its own in between.
void *driver_function(const char *symbol);

/// Converts a result of the driver to the runtime's, which has the same number. A failure becomes the thread's last
/// error.
cudaError_t noted(CUresult result);

} // namespace simulated
