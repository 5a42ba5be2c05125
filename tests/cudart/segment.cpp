// Memory that comes with its address: `cudaMalloc`, and memory that other processes share.

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "capture.h"
#include "device.h"
#include "memory.h"

using namespace simulated;

namespace {

/// The content of a handle for other processes: the process and its file with the memory.
struct Shared {
  pid_t process;
  int file;
};
static_assert(sizeof(Shared) <= sizeof(cudaIpcMemHandle_t));

} // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes) {
  *address = 0;
  Device *device = current_device();
  if (!device)
    return CUDA_ERROR_NO_DEVICE;
  if (const CUresult refused = check_capture())
    return refused;
  if (!bytes)
    return CUDA_ERROR_INVALID_VALUE;
  auto chunk = make_chunk(*device, bytes);
  if (!chunk)
    return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard lock(state());
  *address = map_segment(std::move(chunk));
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemFree(CUdeviceptr address) {
  if (!address)
    return CUDA_SUCCESS;
  if (const CUresult refused = check_capture())
    return refused;
  Device *device = current_device();
  sleep_until(device_done_at(*device));
  std::lock_guard lock(state());
  return unmap_segment(address);
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
  CUdeviceptr taken = 0;
  static auto *const allocate = reinterpret_cast<decltype(cuMemAlloc) *>(driver_function("cuMemAlloc"));
  const CUresult result = bytes ? allocate(&taken, bytes) : CUDA_SUCCESS;
  *address = reinterpret_cast<void *>(taken);
  return noted(result);
}

cudaError_t cudaFree(void *address) {
  if (!current_device())
    return noted(CUDA_ERROR_NO_DEVICE);
  static auto *const free = reinterpret_cast<decltype(cuMemFree) *>(driver_function("cuMemFree"));
  return noted(free(reinterpret_cast<CUdeviceptr>(address)));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *address) {
  std::lock_guard lock(state());
  const Mapping *mapping = mapping_at(reinterpret_cast<Address>(address));
  if (!mapping || !mapping->segment)
    return noted(CUDA_ERROR_INVALID_VALUE);
  const Shared shared{getpid(), mapping->chunk->file};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **address, cudaIpcMemHandle_t handle, unsigned) {
  Shared shared;
  std::memcpy(&shared, &handle, sizeof shared);
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.process, shared.file);
  Device *user = current_device();
  auto chunk = user ? open_chunk(*user, open(path, O_RDWR | O_CLOEXEC)) : nullptr;
  if (!chunk)
    return noted(CUDA_ERROR_INVALID_VALUE);
  std::lock_guard lock(state());
  *address = reinterpret_cast<void *>(map_segment(std::move(chunk)));
  return noted(*address ? CUDA_SUCCESS : CUDA_ERROR_MAP_FAILED);
}

cudaError_t cudaIpcCloseMemHandle(void *address) {
  std::lock_guard lock(state());
  return noted(unmap_segment(reinterpret_cast<Address>(address)));
}

// Allocation in stream order is not simulated: PyTorch's `cudaMallocAsync` backend reports that.

cudaError_t cudaMallocAsync(void **, size_t, cudaStream_t) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaFreeAsync(void *, cudaStream_t) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *, int) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc *, size_t) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaDeviceGetGraphMemAttribute(int, cudaGraphMemAttributeType, void *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaDeviceSetGraphMemAttribute(int, cudaGraphMemAttributeType, void *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}

// Managed memory, which moves between the host and devices by itself, is not simulated either.

cudaError_t cudaMallocManaged(void **, size_t, unsigned) { return noted(CUDA_ERROR_NOT_SUPPORTED); }

} // extern "C"
