// Memory of other devices and processes.

#include "allocator.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

namespace tenure {

namespace {

/// The kind of a handle, in its first byte: who exported it.
enum Kind : char { kTenure = 't', kRuntime = 'c' };

/// Opens memory that another process shares through the CUDA runtime. A process can open it only once.
std::shared_ptr<void> open_of_runtime(const std::string &bytes) {
  static std::mutex mutex;
  static auto &opened = *new std::unordered_map<std::string, std::weak_ptr<void>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto &known = opened[bytes];
  if (auto memory = known.lock())
    return memory;
  cudaIpcMemHandle_t handle;
  TORCH_CHECK(bytes.size() == sizeof(handle), "a handle of ", bytes.size(), " bytes is none of CUDA's");
  std::memcpy(&handle, bytes.data(), sizeof(handle));
  void *address = nullptr;
  C10_CUDA_CHECK(cudaIpcOpenMemHandle(&address, handle, cudaIpcMemLazyEnablePeerAccess));
  const auto device = c10::cuda::current_device();
  std::shared_ptr<void> memory(address, [device](void *address) {
    const c10::cuda::CUDAGuard guard(device);
    // A thread that opens it meanwhile waits until it is closed.
    const std::lock_guard<std::mutex> lock(mutex);
    C10_CUDA_CHECK_WARN(cudaIpcCloseMemHandle(address));
  });
  known = memory;
  return memory;
}

std::shared_ptr<void> open_of_tenure(const std::string &bytes) {
  void *address = nullptr;
  tenure_imported *imported = nullptr;
  check(api->open_shared(c10::cuda::current_device(), bytes.data(), bytes.size(), &address, &imported));
  return {address, [imported](void *) { api->close_shared(imported); }};
}

} // namespace

caching::ShareableHandle Allocator::shareIpcHandle(void *address) {
  std::string handle(1, kTenure);
  size_t offset = 0;
  const auto append = [](void *handle, const char *bytes, size_t count) {
    shielded([&] { value_of<std::string>(handle).append(bytes, count); });
  };
  const tenure_status status = api->share(address, &offset, append, &handle);
  if (status != TENURE_NOT_SHAREABLE) {
    check_told(status);
    return {static_cast<ptrdiff_t>(offset), handle};
  }
  // The block is not made of chunks but comes from cudaMalloc, under PyTorch's own policy.
  size_t bytes = 0;
  void *first = getBaseAllocation(address, &bytes);
  cudaIpcMemHandle_t shared;
  C10_CUDA_CHECK(cudaIpcGetMemHandle(&shared, first));
  handle.assign(1, kRuntime).append(reinterpret_cast<const char *>(&shared), sizeof(shared));
  return {static_cast<char *>(address) - static_cast<char *>(first), handle};
}

std::shared_ptr<void> Allocator::getIpcDevPtr(std::string handle) {
  TORCH_CHECK(!handle.empty(), "an empty handle names no memory");
  const std::string bytes = handle.substr(1);
  TORCH_CHECK(handle[0] == kTenure || handle[0] == kRuntime,
              "the memory was shared by a process without Tenure: install it in both");
  return handle[0] == kTenure ? open_of_tenure(bytes) : open_of_runtime(bytes);
}

void Allocator::enablePeerAccess(DeviceIndex device, DeviceIndex accessed) {
  const c10::cuda::CUDAGuard guard(device);
  const cudaError_t error = cudaDeviceEnablePeerAccess(accessed, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    (void)cudaGetLastError(); // Clears the error, which the runtime keeps until it is read.
  else
    C10_CUDA_CHECK(error);
  check(api->enable_peer(accessed, device));
}

cudaError_t Allocator::memcpyAsync(void *target, int target_device, const void *source, int source_device, size_t bytes,
                                   cudaStream_t stream, bool p2p_enabled) {
  // Without peer access, only this call can copy mapped memory.
  if (!p2p_enabled && target_device != source_device)
    return cudaMemcpyPeerAsync(target, target_device, source, source_device, bytes, stream);
  return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream);
}

void Allocator::copy_data(void *target, const void *source, size_t bytes) const {
  C10_CUDA_CHECK(cudaMemcpy(target, source, bytes, cudaMemcpyDeviceToDevice));
}

} // namespace tenure
