// Copies and fills. They really move bytes, at once or when their graph is launched. A device that writes where it may
// only read, or touches memory that only another device may touch, loses its context.

#include <sys/mman.h>

#include <cstring>

#include "capture.h"
#include "device.h"
#include "memory.h"

using namespace simulated;

namespace {

/// Copies; a device of its own touches each side.
CUresult copy(const Device *writer, void *target, const Device *reader, const void *source, size_t bytes,
              CUstream stream) {
  const auto from = reinterpret_cast<Address>(source), to = reinterpret_cast<Address>(target);
  if (!writer || !reader || !mapped(from, bytes) || !mapped(to, bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const bool is_inside = is_on_device(from) && is_on_device(to);
  return submit(stream, [=] {
    check_access(*reader, from, bytes, PROT_READ);
    check_access(*writer, to, bytes, PROT_WRITE);
    if (has_content(bytes))
      std::memmove(target, source, bytes);
    return is_inside ? memory_time(2 * bytes) : link_time(bytes);
  });
}

/// Copies; the stream's device touches both sides.
CUresult copy(void *target, const void *source, size_t bytes, CUstream handle) {
  const Stream *it = stream(handle);
  return it ? copy(it->device, target, it->device, source, bytes, handle) : CUDA_ERROR_INVALID_HANDLE;
}

template <class Value> CUresult fill(CUdeviceptr target, Value value, size_t count, CUstream handle) {
  const Stream *it = stream(handle);
  if (!it)
    return CUDA_ERROR_INVALID_HANDLE;
  if (!mapped(target, count * sizeof value))
    return CUDA_ERROR_INVALID_VALUE;
  return submit(handle, [=, &user = *it->device] {
    check_access(user, target, count * sizeof value, PROT_WRITE);
    for (size_t i = 0; has_content(count * sizeof value) && i < count; ++i)
      std::memcpy(reinterpret_cast<void *>(target + i * sizeof value), &value, sizeof value);
    return memory_time(count * sizeof value);
  });
}

const void *host(CUdeviceptr address) { return reinterpret_cast<const void *>(address); }
void *writable(CUdeviceptr address) { return reinterpret_cast<void *>(address); }

} // namespace

extern "C" {

CUresult cuMemcpyHtoDAsync(CUdeviceptr target, const void *source, size_t bytes, CUstream stream) {
  return copy(writable(target), source, bytes, stream);
}

CUresult cuMemcpyDtoHAsync(void *target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy(target, host(source), bytes, stream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy(writable(target), host(source), bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t bytes, CUstream stream) {
  return fill(target, value, bytes, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  return fill(target, value, count, stream);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr target, cuuint32_t value, unsigned) {
  return fill(target, value, 1, stream);
}

cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return noted(copy(target, source, bytes, stream));
}

cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, cudaMemcpyKind) {
  if (const CUresult refused = check_capture())
    return noted(refused);
  const CUresult result = copy(target, source, bytes, nullptr);
  return result ? noted(result) : cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpyPeerAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                                cudaStream_t stream) {
  return noted(copy(device(target_device), target, device(source_device), source, bytes, stream));
}

cudaError_t cudaMemcpy2DAsync(void *target, size_t target_pitch, const void *source, size_t source_pitch, size_t width,
                              size_t height, cudaMemcpyKind, cudaStream_t stream) {
  CUresult result = CUDA_SUCCESS;
  for (size_t row = 0; row < height && result == CUDA_SUCCESS; ++row)
    result = copy(static_cast<char *>(target) + row * target_pitch,
                  static_cast<const char *>(source) + row * source_pitch, width, stream);
  return noted(result);
}

cudaError_t cudaMemset(void *target, int value, size_t bytes) {
  if (const CUresult refused = check_capture())
    return noted(refused);
  return cudaMemsetAsync(target, value, bytes, nullptr);
}

cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
  return noted(cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(target), static_cast<unsigned char>(value), bytes, stream));
}

} // extern "C"
