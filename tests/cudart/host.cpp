// Pinned memory of the host, and attributes of pointers.

#include <sys/mman.h>

#include <map>

#include "capture.h"
#include "device.h"
#include "memory.h"

using namespace simulated;

namespace {

struct Pinned {
  size_t bytes;
  /// Whether it was mapped here, and not registered by the program.
  bool own;
};

std::map<Address, Pinned> &pinned() {
  static auto *all = new std::map<Address, Pinned>;
  return *all;
}

bool is_pinned(Address address) {
  auto above = pinned().upper_bound(address);
  return above != pinned().begin() && (--above, address < above->first + above->second.bytes);
}

} // namespace

extern "C" {

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned) {
  std::lock_guard lock(state());
  if (!address || !bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (is_pinned(reinterpret_cast<Address>(address)))
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  pinned()[reinterpret_cast<Address>(address)] = {bytes, false};
  return CUDA_SUCCESS;
}

CUresult cuMemHostUnregister(void *address) {
  std::lock_guard lock(state());
  const auto found = pinned().find(reinterpret_cast<Address>(address));
  if (found == pinned().end() || found->second.own)
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  pinned().erase(found);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *host, unsigned) {
  *address = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
  return noted(cuMemHostRegister(address, bytes, flags));
}

cudaError_t cudaHostUnregister(void *address) { return noted(cuMemHostUnregister(address)); }

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned) {
  if (const CUresult refused = check_capture())
    return noted(refused);
  *address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (*address == MAP_FAILED)
    return noted(CUDA_ERROR_OUT_OF_MEMORY);
  std::lock_guard lock(state());
  pinned()[reinterpret_cast<Address>(*address)] = {bytes, true};
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *address) {
  std::lock_guard lock(state());
  const auto found = pinned().find(reinterpret_cast<Address>(address));
  if (found == pinned().end() || !found->second.own)
    return noted(CUDA_ERROR_INVALID_VALUE);
  munmap(address, found->second.bytes);
  pinned().erase(found);
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer) {
  std::lock_guard lock(state());
  const auto address = reinterpret_cast<Address>(pointer);
  *attributes = {};
  attributes->hostPointer = const_cast<void *>(pointer);
  if (const Mapping *mapping = mapping_at(address)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = mapping->chunk->device->number;
    attributes->devicePointer = const_cast<void *>(pointer);
    attributes->hostPointer = nullptr;
  } else if (is_pinned(address)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = const_cast<void *>(pointer);
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -1;
  }
  return cudaSuccess;
}

} // extern "C"
