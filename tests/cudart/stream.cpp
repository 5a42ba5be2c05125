#include "stream.h"

#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <unordered_map>

#include "capture.h"
#include "device.h"

namespace simulated {

namespace {

constexpr int LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5;
constexpr Time NANOSECONDS = 1000000000;

/// All streams. A stream's handle is its address.
std::unordered_map<CUstream, std::unique_ptr<Stream>> &streams() {
  static auto *all = new std::unordered_map<CUstream, std::unique_ptr<Stream>>;
  return *all;
}

Stream *find(CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    Device *device = current_device();
    return device ? &device->null_stream : nullptr;
  }
  const auto found = streams().find(handle);
  return found == streams().end() ? nullptr : found->second.get();
}

/// Returns whether time passes only for a thread that waits, so that every run of a program does the same.
bool is_virtual() {
  static const bool it = [] {
    const char *clock = std::getenv("TENURE_CUDART_CLOCK");
    return clock && std::strcmp(clock, "virtual") == 0;
  }();
  return it;
}

/// Bytes moved in 1 ns, and the least time of a kernel.
constexpr double MEMORY = 3000, LINK = 54;
constexpr Time LEAST_TIME = 4000;
constexpr size_t LARGE = 256 << 10;

// The virtual time. It begins at 1, because an event with time 0 was never recorded.
std::atomic<Time> virtual_now{1};

} // namespace

Time now() {
  if (is_virtual())
    return virtual_now;
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * NANOSECONDS + at.tv_nsec;
}

void sleep_until(Time time) {
  if (is_virtual()) {
    for (Time at = virtual_now; at < time && !virtual_now.compare_exchange_weak(at, time);) {
    }
    return;
  }
  const timespec at{time / NANOSECONDS, time % NANOSECONDS};
  while (now() < time)
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
}

double slowness() {
  static const double it = [] {
    const char *slowness = std::getenv("TENURE_CUDART_SLOWNESS");
    return slowness ? std::strtod(slowness, nullptr) : 0;
  }();
  return it;
}

bool has_content(size_t bytes) { return slowness() == 0 || bytes <= LARGE; }

Time memory_time(size_t bytes) { return slowness() == 0 ? 0 : LEAST_TIME + Time(slowness() * bytes / MEMORY); }

Time link_time(size_t bytes) { return Time(slowness() * bytes / LINK); }

Stream *stream(CUstream handle) {
  std::lock_guard lock(state());
  return find(handle);
}

CUresult submit(CUstream handle, Work work) {
  Stream *it;
  {
    std::lock_guard lock(state());
    it = find(handle);
    if (!it)
      return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult failure = it->device->failure)
      return failure;
    if (it->capture) {
      if (it->capture->broken)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      it->capture->graph->push_back(std::move(work));
      return CUDA_SUCCESS;
    }
  }
  run(*it, work);
  return CUDA_SUCCESS;
}

void run(Stream &stream, const Work &work) {
  try {
    if (const Time duration = work())
      stream.done_at = std::max(stream.done_at.load(), now()) + duration;
  } catch (IllegalAddress) {
    stream.device->failure = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
}

Time device_done_at(Device &device) {
  std::lock_guard lock(state());
  Time done_at = device.null_stream.done_at;
  for (const auto &[_, stream] : streams())
    if (stream->device == &device)
      done_at = std::max(done_at, stream->done_at.load());
  return done_at;
}

void release_captured(const Capture *capture) {
  for (const auto &[_, stream] : streams())
    if (stream->capture.get() == capture)
      stream->capture = nullptr;
}

} // namespace simulated

using namespace simulated;

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
  auto it = std::make_unique<Stream>();
  it->device = current_device();
  if (!it->device)
    return CUDA_ERROR_NO_DEVICE;
  it->flags = flags;
  it->priority = std::clamp(priority, GREATEST_PRIORITY, LEAST_PRIORITY);
  *handle = reinterpret_cast<CUstream>(it.get());
  std::lock_guard lock(state());
  streams()[*handle] = std::move(it);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  std::lock_guard lock(state());
  return streams().erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuStreamQuery(CUstream handle) {
  Stream *it = stream(handle);
  if (!it)
    return CUDA_ERROR_INVALID_HANDLE;
  if (it->capture)
    return break_capture(*it->capture);
  if (const CUresult refused = check_capture())
    return refused;
  return it->done_at > now() ? CUDA_ERROR_NOT_READY : it->device->failure.load();
}

CUresult cuStreamSynchronize(CUstream handle) {
  Stream *it = stream(handle);
  if (!it)
    return CUDA_ERROR_INVALID_HANDLE;
  if (it->capture)
    return break_capture(*it->capture);
  if (const CUresult refused = check_capture())
    return refused;
  sleep_until(it->done_at);
  return it->device->failure;
}

CUresult cuCtxSynchronize() {
  Device *device = current_device();
  if (!device)
    return CUDA_ERROR_NO_DEVICE;
  if (const CUresult refused = check_capture())
    return refused;
  sleep_until(device_done_at(*device));
  return device->failure;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  *least = LEAST_PRIORITY;
  *greatest = GREATEST_PRIORITY;
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
  return submit(handle, [=] {
    const Time since = now();
    function(data);
    return slowness() == 0 ? 0 : now() - since;
  });
}

cudaError_t cudaStreamCreate(cudaStream_t *handle) { return noted(cuStreamCreateWithPriority(handle, 0, 0)); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *handle, unsigned flags) {
  return noted(cuStreamCreateWithPriority(handle, flags, 0));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *handle, unsigned flags, int priority) {
  return noted(cuStreamCreateWithPriority(handle, flags, priority));
}

cudaError_t cudaStreamDestroy(cudaStream_t handle) { return noted(cuStreamDestroy(handle)); }

cudaError_t cudaStreamQuery(cudaStream_t handle) { return noted(cuStreamQuery(handle)); }

cudaError_t cudaStreamSynchronize(cudaStream_t handle) { return noted(cuStreamSynchronize(handle)); }

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int *priority) {
  const Stream *it = stream(handle);
  if (it)
    *priority = it->priority;
  return noted(it ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return noted(cuCtxGetStreamPriorityRange(least, greatest));
}

cudaError_t cudaDeviceSynchronize() { return noted(cuCtxSynchronize()); }

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void *data) {
  return noted(cuLaunchHostFunc(handle, function, data));
}

cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void *data, unsigned) {
  return noted(submit(handle, [=] {
    function(handle, cudaSuccess, data);
    return 0;
  }));
}

} // extern "C"
