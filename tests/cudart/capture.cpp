#include "capture.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "device.h"

namespace simulated {

namespace {

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/// The captures that have not ended.
std::vector<std::shared_ptr<Capture>> captures;
unsigned long long next_id = 1;

/// All graphs. A graph's handle is its address, and so is that of its executable graph: graphs do not change.
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

/// An object of the program, by the handle under which graphs retain it, with the references that the program holds.
struct UserObject {
  std::shared_ptr<void> object;
  unsigned references;
};
std::map<cudaUserObject_t, UserObject> &user_objects() {
  static auto *all = new std::map<cudaUserObject_t, UserObject>;
  return *all;
}

/// Takes references from the program. Returns the object, so that the caller destroys it after it releases the lock.
std::shared_ptr<void> drop_references(std::map<cudaUserObject_t, UserObject>::iterator found, unsigned count) {
  std::shared_ptr<void> object = found->second.object;
  found->second.references -= std::min(count, found->second.references);
  if (found->second.references == 0)
    user_objects().erase(found);
  return object;
}

/// Returns the graph with that handle, ended or still being captured, or null.
Graph *any_graph(cudaGraph_t handle) {
  for (const auto &capture : captures)
    if (reinterpret_cast<cudaGraph_t>(capture->graph.get()) == handle)
      return capture->graph.get();
  return find(graphs(), handle).get();
}

template <class Handle> CUresult destroy(std::set<std::shared_ptr<Graph>> &known, Handle handle) {
  // Destroyed after the lock is released, since destroying a retained object may wait.
  std::shared_ptr<Graph> graph;
  std::lock_guard lock(state());
  graph = find(known, handle);
  return known.erase(graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/// Returns whether a capture forbids the call, as `cudaThreadExchangeStreamCaptureMode` documents.
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
  const std::shared_ptr<Capture> capture = it->capture;
  std::lock_guard lock(state());
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

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t handle, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(executable, handle, flags);
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *handle, void *object, cudaHostFn_t destroy, unsigned references,
                                 unsigned) {
  if (!destroy || references == 0)
    return noted(CUDA_ERROR_INVALID_VALUE);
  const std::shared_ptr<void> kept(object, destroy);
  static uintptr_t next_handle = 1;
  std::lock_guard lock(state());
  *handle = reinterpret_cast<cudaUserObject_t>(next_handle++);
  user_objects()[*handle] = {kept, references};
  return cudaSuccess;
}

cudaError_t cudaUserObjectRelease(cudaUserObject_t handle, unsigned count) {
  std::shared_ptr<void> dropped;
  std::lock_guard lock(state());
  const auto found = user_objects().find(handle);
  if (found == user_objects().end())
    return noted(CUDA_ERROR_INVALID_VALUE);
  dropped = drop_references(found, count);
  return cudaSuccess;
}

cudaError_t cudaGraphRetainUserObject(cudaGraph_t handle, cudaUserObject_t object, unsigned count, unsigned flags) {
  std::shared_ptr<void> dropped;
  std::lock_guard lock(state());
  const auto found = user_objects().find(object);
  Graph *graph = any_graph(handle);
  if (found == user_objects().end() || !graph)
    return noted(CUDA_ERROR_INVALID_VALUE);
  graph->retained.push_back(found->second.object);
  if (flags & cudaGraphUserObjectMove)
    dropped = drop_references(found, count);
  return cudaSuccess;
}

// Branches and loops within a graph depend on results of kernels, which compute nothing here.

cudaError_t cudaGraphConditionalHandleCreate(cudaGraphConditionalHandle *, cudaGraph_t, unsigned, unsigned) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaGraphAddNode(cudaGraphNode_t *, cudaGraph_t, const cudaGraphNode_t *, const cudaGraphEdgeData *, size_t,
                             cudaGraphNodeParams *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t, cudaGraph_t, const cudaGraphNode_t *,
                                          const cudaGraphEdgeData *, size_t, cudaStreamCaptureMode) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t, cudaGraphNode_t *, const cudaGraphEdgeData *, size_t,
                                                unsigned) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
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
