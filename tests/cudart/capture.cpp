#include "capture.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "device.h"

namespace simulated {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/// Captures that have not ended.
std::vector<std::shared_ptr<Capture>> captures;
unsigned long long next_id = 1;

/// The handle of a graph is its address, and so is that of what it is launched by: graphs do not change.
std::set<std::shared_ptr<Graph>> &graphs() {
  static auto *all = new std::set<std::shared_ptr<Graph>>;
  return *all;
}
std::set<std::shared_ptr<Graph>> &executables() {
  static auto *all = new std::set<std::shared_ptr<Graph>>;
  return *all;
}

template <class Handle> std::shared_ptr<Graph> find(const std::set<std::shared_ptr<Graph>> &known, Handle handle) {
  const auto is = [handle](const auto &graph) { return reinterpret_cast<Handle>(graph.get()) == handle; };
  const auto found = std::find_if(known.begin(), known.end(), is);
  return found == known.end() ? nullptr : *found;
}

template <class Handle> CUresult destroy(std::set<std::shared_ptr<Graph>> &known, Handle handle) {
  std::lock_guard lock(state());
  return known.erase(find(known, handle)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// As `cudaThreadExchangeStreamCaptureMode` tells it.
bool forbids(const Capture &capture) {
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED || capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  const bool ours = capture.thread == std::this_thread::get_id();
  return ours || (thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

} // namespace

thread_local Stream *launched_on = nullptr;

CUresult check_capture() {
  std::lock_guard lock(state());
  CUresult result = CUDA_SUCCESS;
  for (const auto &capture : captures) {
    if (forbids(*capture)) {
      capture->broken = true;
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

CUresult break_capture(Capture &capture) {
  capture.broken = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

} // namespace simulated

using namespace simulated;

extern "C" {

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  std::swap(*mode, thread_mode);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
  const Stream *it = stream(handle);
  if (!it)
    return CUDA_ERROR_INVALID_HANDLE;
  *status = !it->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
            : it->capture->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
  auto driver_mode = static_cast<CUstreamCaptureMode>(*mode);
  cuThreadExchangeStreamCaptureMode(&driver_mode);
  *mode = static_cast<cudaStreamCaptureMode>(driver_mode);
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus *status) {
  CUstreamCaptureStatus driver_status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = cuStreamIsCapturing(handle, &driver_status);
  *status = static_cast<cudaStreamCaptureStatus>(driver_status);
  return noted(result);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
  const cudaError_t error = cudaStreamIsCapturing(handle, status);
  if (error != cudaSuccess || *status == cudaStreamCaptureStatusNone)
    return error;
  const Capture &capture = *stream(handle)->capture;
  if (id)
    *id = capture.id;
  if (graph)
    *graph = reinterpret_cast<cudaGraph_t>(capture.graph.get());
  if (dependencies)
    *dependencies = nullptr;
  if (edges)
    *edges = nullptr;
  if (count)
    *count = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Stream *it = stream(handle);
  if (!it)
    return noted(CUDA_ERROR_INVALID_HANDLE);
  std::lock_guard lock(state());
  if (it->capture || it == &it->device->null_stream)
    return noted(it->capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  it->capture.reset(new Capture{next_id++, static_cast<CUstreamCaptureMode>(mode), handle});
  captures.push_back(it->capture);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *graph) {
  *graph = nullptr;
  const Stream *it = stream(handle);
  if (!it || !it->capture)
    return noted(it ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_INVALID_HANDLE);
  std::lock_guard lock(state());
  const std::shared_ptr<Capture> capture = it->capture;
  if (capture->origin != handle)
    return noted(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  if (capture->thread != std::this_thread::get_id() && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return noted(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  capture->ended = true;
  release_captured(capture.get());
  captures.erase(std::find(captures.begin(), captures.end(), capture));
  if (capture->broken)
    return noted(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  graphs().insert(capture->graph);
  *graph = reinterpret_cast<cudaGraph_t>(capture->graph.get());
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t handle, unsigned long long) {
  std::lock_guard lock(state());
  const auto graph = find(graphs(), handle);
  if (!graph)
    return noted(CUDA_ERROR_INVALID_VALUE);
  const auto copy = std::make_shared<Graph>(*graph);
  executables().insert(copy);
  *executable = reinterpret_cast<cudaGraphExec_t>(copy.get());
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  std::shared_ptr<Graph> graph;
  {
    std::lock_guard lock(state());
    graph = find(executables(), executable);
  }
  if (!graph)
    return noted(CUDA_ERROR_INVALID_VALUE);
  return noted(submit(handle, [graph, handle] {
    launched_on = stream(handle);
    for (const Work &work : *graph)
      run(*launched_on, work);
    return Time(0);
  }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t handle) { return noted(destroy(graphs(), handle)); }

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return noted(destroy(executables(), executable)); }

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t *nodes, size_t *count) {
  std::lock_guard lock(state());
  const auto graph = find(graphs(), handle);
  if (!graph)
    return noted(CUDA_ERROR_INVALID_VALUE);
  *count = nodes ? std::min(*count, graph->size()) : graph->size();
  for (size_t i = 0; nodes && i < *count; ++i)
    nodes[i] = reinterpret_cast<cudaGraphNode_t>(&(*graph)[i]);
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t *, cudaGraphEdgeData *, size_t *count) {
  *count = 0;
  return cudaSuccess;
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t handle, const char *path, unsigned) {
  std::lock_guard lock(state());
  const auto graph = find(graphs(), handle);
  FILE *file = graph ? std::fopen(path, "w") : nullptr;
  if (!file)
    return noted(CUDA_ERROR_INVALID_VALUE);
  std::fprintf(file, "digraph captured { label=\"%zu nodes\" }\n", graph->size());
  std::fclose(file);
  return cudaSuccess;
}

} // extern "C"
