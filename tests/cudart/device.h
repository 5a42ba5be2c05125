// The simulated devices, and which of them a thread uses.
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
  /// Bytes of chunks that this process made and that are not gone.
  std::atomic<size_t> used{0};
  /// Whether the primary context was made.
  std::atomic<bool> active{false};
  /// What lost its context, if something did: from then on, streams and events answer with it.
  std::atomic<CUresult> failure{CUDA_SUCCESS};
  Stream null_stream;
  /// Devices whose memory this one was told to access.
  std::set<int> peers;

  Device(int number, size_t capacity) : number(number), capacity(capacity) { null_stream.device = this; }
  CUcontext context() { return reinterpret_cast<CUcontext>(this); }
};

/// As many as TENURE_CUDART_DEVICES says (1), each of TENURE_CUDART_CAPACITY bytes (8 GiB).
std::deque<Device> &devices();

/// The device of that number, or null.
Device *device(int number);

/// The device of the calling thread, which starts as number 0; null where there is none. Makes its context.
Device *current_device();

/// The device whose context this is, or null.
Device *device_of(CUcontext context);

/// Guards everything that has no guard of its own. Never held while something waits.
std::mutex &state();

/// The runtime's name of a result of the driver; they have the same numbers. A failure is the thread's last error.
cudaError_t noted(CUresult result);

} // namespace simulated
