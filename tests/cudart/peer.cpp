// Peer access: each device can reach every other's memory once it is enabled.

#include "device.h"

using namespace simulated;

namespace {

/// Gives the current device access to memory that others allocate. Access to mapped memory goes through
/// `cuMemSetAccess`.
CUresult enable_access_to(const Device *peer) {
  Device *user = current_device();
  if (!user || !peer || peer == user)
    return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(state());
  return user->peers.insert(peer->number).second ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

} // namespace

extern "C" {

CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer) {
  if (!device(ordinal) || !device(peer))
    return CUDA_ERROR_INVALID_DEVICE;
  *can = ordinal != peer;
  return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned) { return enable_access_to(device_of(peer)); }

cudaError_t cudaDeviceCanAccessPeer(int *can, int number, int peer) {
  return noted(cuDeviceCanAccessPeer(can, number, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) { return noted(enable_access_to(device(peer))); }

} // extern "C"
