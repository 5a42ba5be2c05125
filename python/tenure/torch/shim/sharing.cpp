// Other devices and processes.

#include "allocator.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace tenure {

caching::ShareableHandle Allocator::shareIpcHandle(void *address) { TORCH_CHECK_NOT_IMPLEMENTED(false, ""); }

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) { TORCH_CHECK_NOT_IMPLEMENTED(false, ""); }

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex accessed) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(accessed, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError(); // The runtime keeps it until it is asked for.
  else
    C10_CUDA_CHECK(error);
}

cudaError_t Allocator::memcpyAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                                   cudaStream_t stream, bool p2p_enabled) {
  // Without access to the peer, mapped memory is copied by this call alone.
  if (!p2p_enabled && target_device != source_device)
    return cudaMemcpyPeerAsync(target, target_device, source, source_device, bytes, stream);
  return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
}

void Allocator::copy_data(void *target, const void *source, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice));
}

} // namespace tenure
