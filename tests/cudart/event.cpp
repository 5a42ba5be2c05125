// Events, of this process and of others.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "capture.h"
#include "device.h"

using namespace simulated;

namespace {

/// The time when the work before the event is done, in a file in memory, so that other processes see it.
struct Record {
  int file = memfd_create("simulated-cuda-event", MFD_CLOEXEC);
  std::atomic<Time> *done_at = nullptr;

  explicit Record(int other = -1) {
    if (other >= 0) {
      close(file);
      file = other;
    } else if (ftruncate(file, sizeof *done_at) != 0) {
      return;
    }
    void *page = mmap(nullptr, sizeof *done_at, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    done_at = page == MAP_FAILED ? nullptr : static_cast<std::atomic<Time> *>(page);
  }
  ~Record() {
    if (done_at)
      munmap(done_at, sizeof *done_at);
    close(file);
  }
};

struct Event {
  unsigned flags;
  std::atomic<Time> done_at{0};
  /// The record of an interprocess event.
  std::unique_ptr<Record> shared;
  /// The capture that it was last recorded in, if it was one.
  std::shared_ptr<Capture> capture;

  std::atomic<Time> &time() { return shared ? *shared->done_at : done_at; }
};

/// The content of a handle for other processes: the process and its file with the record.
struct Shared {
  pid_t process;
  int file;
};
static_assert(sizeof(Shared) <= sizeof(CUipcEventHandle));

/// All events. An event's handle is its address.
std::unordered_map<CUevent, std::shared_ptr<Event>> &events() {
  static auto *all = new std::unordered_map<CUevent, std::shared_ptr<Event>>;
  return *all;
}

std::shared_ptr<Event> find(CUevent handle) {
  std::lock_guard lock(state());
  const auto found = events().find(handle);
  return found == events().end() ? nullptr : found->second;
}

CUevent add(std::shared_ptr<Event> event) {
  std::lock_guard lock(state());
  const auto handle = reinterpret_cast<CUevent>(event.get());
  events()[handle] = std::move(event);
  return handle;
}

CUresult record(CUevent handle, CUstream on, bool external) {
  const auto event = find(handle);
  Stream *it = stream(on);
  if (!event || !it)
    return CUDA_ERROR_INVALID_HANDLE;
  if (it->capture && !external) {
    std::lock_guard lock(state());
    event->capture = it->capture;
    return CUDA_SUCCESS;
  }
  event->capture = nullptr;
  return submit(on, [event, it] {
    event->time() = std::max(it->done_at.load(), now());
    return 0;
  });
}

CUresult wait(CUstream handle, CUevent on, bool external) {
  const auto event = find(on);
  Stream *it = stream(handle);
  if (!event || !it)
    return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard lock(state());
  if (event->capture && !event->capture->ended) {
    if (it->capture && it->capture != event->capture)
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    it->capture = event->capture;
    return CUDA_SUCCESS;
  }
  if (it->capture && external) {
    // Each launch waits for the last recording before it.
    it->capture->graph->push_back([event] {
      launched_on->done_at = std::max(launched_on->done_at.load(), event->time().load());
      return Time(0);
    });
    return CUDA_SUCCESS;
  }
  if (it->capture) {
    it->capture->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  it->done_at = std::max(it->done_at.load(), event->time().load());
  return CUDA_SUCCESS;
}

/// Checks whether the host may query an event.
CUresult check_host(const Event &event) {
  if (const Device *device = current_device(); device && device->failure)
    return device->failure;
  return event.capture ? CUDA_ERROR_CAPTURED_EVENT : check_capture();
}

} // namespace

extern "C" {

CUresult cuEventCreate(CUevent *handle, unsigned flags) {
  if (!current_device())
    return CUDA_ERROR_NO_DEVICE;
  auto event = std::make_shared<Event>();
  event->flags = flags;
  if (flags & CU_EVENT_INTERPROCESS) {
    event->shared = std::make_unique<Record>();
    if (!event->shared->done_at)
      return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *handle = add(std::move(event));
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  std::lock_guard lock(state());
  return events().erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuEventRecord(CUevent handle, CUstream on) { return record(handle, on, false); }

CUresult cuStreamWaitEvent(CUstream handle, CUevent on, unsigned flags) {
  return wait(handle, on, flags & CU_EVENT_WAIT_EXTERNAL);
}

CUresult cuEventQuery(CUevent handle) {
  const auto event = find(handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = check_host(*event))
    return refused;
  return event->time() > now() ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  const auto event = find(handle);
  if (!event)
    return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = check_host(*event))
    return refused;
  sleep_until(event->time());
  return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
  const auto first = find(start), last = find(end);
  if (!first || !last || !first->time() || !last->time() || (first->flags | last->flags) & CU_EVENT_DISABLE_TIMING)
    return CUDA_ERROR_INVALID_HANDLE;
  if (std::max(first->time(), last->time()) > now())
    return CUDA_ERROR_NOT_READY;
  *milliseconds = float(double(last->time() - first->time()) / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent of) {
  const auto event = find(of);
  if (!event || !event->shared)
    return CUDA_ERROR_INVALID_HANDLE;
  const Shared shared{getpid(), event->shared->file};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &shared, sizeof shared);
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *handle, CUipcEventHandle of) {
  Shared shared;
  std::memcpy(&shared, &of, sizeof shared);
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.process, shared.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return CUDA_ERROR_INVALID_HANDLE;
  auto event = std::make_shared<Event>();
  event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
  event->shared = std::make_unique<Record>(file);
  if (!event->shared->done_at)
    return CUDA_ERROR_INVALID_HANDLE;
  *handle = add(std::move(event));
  return CUDA_SUCCESS;
}

cudaError_t cudaEventCreate(cudaEvent_t *handle) { return noted(cuEventCreate(handle, 0)); }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *handle, unsigned flags) { return noted(cuEventCreate(handle, flags)); }

cudaError_t cudaEventDestroy(cudaEvent_t handle) { return noted(cuEventDestroy(handle)); }

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) { return noted(cuEventRecord(handle, on)); }

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned flags) {
  return noted(record(handle, on, flags & cudaEventRecordExternal));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t on, unsigned flags) {
  return noted(cuStreamWaitEvent(handle, on, flags));
}

cudaError_t cudaEventQuery(cudaEvent_t handle) { return noted(cuEventQuery(handle)); }

cudaError_t cudaEventSynchronize(cudaEvent_t handle) { return noted(cuEventSynchronize(handle)); }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return noted(cuEventElapsedTime(milliseconds, start, end));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t of) {
  return noted(cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle *>(handle), of));
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *handle, cudaIpcEventHandle_t of) {
  CUipcEventHandle same;
  std::memcpy(&same, &of, sizeof same);
  return noted(cuIpcOpenEventHandle(handle, same));
}

} // extern "C"
