// NVIDIA's management library, as far as PyTorch asks it about devices: no device is part of a fabric, and no computing
// process is listed. PyTorch's packages lack its headers, so its types are written out.

#include <cstdio>

#include "device.h"

using namespace simulated;

namespace {

constexpr int NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6;
constexpr int CUDA_13 = 13000;

/// `nvmlGpuFabricInfoV_t`.
struct FabricInfo {
  unsigned version;
  unsigned char cluster[16];
  int status;
  unsigned clique;
  unsigned char state; // 0: the device does not support it
  unsigned health;
};

} // namespace

extern "C" {

int nvmlInit_v2() { return NVML_SUCCESS; }
int nvmlShutdown() { return NVML_SUCCESS; }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = CUDA_13;
  return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **handle) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(id, "%x:%x", &domain, &bus) != 2 || !device(int(bus) - 1))
    return NVML_ERROR_NOT_FOUND;
  *handle = device(int(bus) - 1);
  return NVML_SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *count, void *) {
  *count = 0;
  return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *, unsigned, int *) { return NVML_ERROR_NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *, unsigned, void *) { return NVML_ERROR_NOT_SUPPORTED; }

int nvmlDeviceGetGpuFabricInfoV(void *, FabricInfo *info) {
  *info = {info->version, {}, NVML_SUCCESS, 0, 0, 0};
  return NVML_SUCCESS;
}

} // extern "C"
