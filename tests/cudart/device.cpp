#include "device.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace simulated {

namespace {

constexpr size_t DEFAULT_CAPACITY = size_t(8) << 30;
constexpr char NAME[] = "Simulated";
constexpr int VERSION = 13000;

thread_local int current = 0;
/// Whether the thread has a context, and not only the number of a device.
thread_local bool bound = false;
thread_local cudaError_t last_error = cudaSuccess;

size_t setting(const char *name, size_t otherwise) {
  const char *value = std::getenv(name);
  return value && *value ? std::strtoull(value, nullptr, 10) : otherwise;
}

/// Returns an NVIDIA H200's properties, as far as PyTorch reads them.
cudaDeviceProp properties_of(const Device &device) {
  cudaDeviceProp it{};
  std::snprintf(it.name, sizeof it.name, "%s", NAME);
  it.uuid.bytes[15] = char(device.number);
  it.totalGlobalMem = device.capacity;
  it.sharedMemPerBlock = 48 << 10;
  it.sharedMemPerBlockOptin = 227 << 10;
  it.sharedMemPerMultiprocessor = 228 << 10;
  it.regsPerBlock = it.regsPerMultiprocessor = 65536;
  it.warpSize = 32;
  it.maxThreadsPerBlock = 1024;
  it.maxThreadsPerMultiProcessor = 2048;
  it.maxBlocksPerMultiProcessor = 32;
  it.maxThreadsDim[0] = it.maxThreadsDim[1] = 1024;
  it.maxThreadsDim[2] = 64;
  it.maxGridSize[0] = 0x7fffffff;
  it.maxGridSize[1] = it.maxGridSize[2] = 65535;
  it.totalConstMem = 64 << 10;
  it.major = 9;
  it.textureAlignment = 512;
  it.multiProcessorCount = 132;
  it.l2CacheSize = 60 << 20;
  it.memoryBusWidth = 6144;
  it.canMapHostMemory = it.unifiedAddressing = it.concurrentKernels = it.cooperativeLaunch = 1;
  it.asyncEngineCount = 3;
  it.pciBusID = device.number + 1;
  it.streamPrioritiesSupported = it.ipcEventSupported = it.hostRegisterSupported = 1;
  return it;
}

int attribute_of(const Device &device, CUdevice_attribute attribute) {
  const cudaDeviceProp it = properties_of(device);
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return it.major;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return it.minor;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return it.warpSize;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000; // in kHz: a cycle is 1 ns
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return it.multiProcessorCount;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return it.l2CacheSize;
  case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return it.asyncEngineCount;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return it.maxThreadsPerBlock;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return it.maxThreadsPerMultiProcessor;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return it.maxGridSize[0];
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: return it.maxGridSize[1];
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return it.maxGridSize[2];
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return int(it.sharedMemPerBlock);
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return int(it.sharedMemPerBlockOptin);
  case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return it.pciBusID;
  case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return -1;
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
  case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: return 1;
  default: return 0;
  }
}

} // namespace

std::deque<Device> &devices() {
  static std::deque<Device> *all = [] {
    auto *devices = new std::deque<Device>; // never destroyed: threads outlive main
    const size_t count = setting("TENURE_CUDART_DEVICES", 1);
    for (size_t number = 0; number < count; ++number)
      devices->emplace_back(int(number), setting("TENURE_CUDART_CAPACITY", DEFAULT_CAPACITY));
    return devices;
  }();
  return *all;
}

Device *device(int number) {
  return number >= 0 && size_t(number) < devices().size() ? &devices()[number] : nullptr;
}

Device *current_device() {
  Device *it = device(current);
  if (it)
    it->active = bound = true;
  return it;
}

Device *device_of(CUcontext context) {
  for (Device &device : devices())
    if (device.context() == context)
      return &device;
  return nullptr;
}

std::mutex &state() {
  static auto *mutex = new std::mutex;
  return *mutex;
}

cudaError_t noted(CUresult result) {
  const auto error = static_cast<cudaError_t>(result);
  if (error != cudaSuccess && error != cudaErrorNotReady)
    last_error = error;
  return error;
}

} // namespace simulated

using namespace simulated;

extern "C" {

// The driver:

CUresult cuInit(unsigned) { return devices().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }

CUresult cuDriverGetVersion(int *version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
  *count = int(devices().size());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ordinal, int number) {
  *ordinal = number;
  return device(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice ordinal) {
  std::snprintf(name, size_t(len), "%s", NAME);
  return device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice ordinal) {
  std::snprintf(id, size_t(len), "0000:%02X:00.0", ordinal + 1);
  return device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal) {
  if (!device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *uuid = properties_of(*device(ordinal)).uuid;
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice ordinal) {
  if (!device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *bytes = device(ordinal)->capacity;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice ordinal) {
  if (!device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *value = attribute_of(*device(ordinal), attribute);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice ordinal) {
  if (!device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  device(ordinal)->active = true;
  *context = device(ordinal)->context();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return device(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned *flags, int *active) {
  if (!device(ordinal))
    return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = device(ordinal)->active;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  *context = bound ? device(current)->context() : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  bound = context != nullptr;
  if (!context)
    return CUDA_SUCCESS;
  const Device *device = device_of(context);
  if (!device)
    return CUDA_ERROR_INVALID_CONTEXT;
  current = device->number;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *ordinal) {
  *ordinal = current;
  return bound ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuGetErrorName(CUresult result, const char **name) {
  *name = cudaGetErrorName(static_cast<cudaError_t>(result));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(result));
  return CUDA_SUCCESS;
}

// The runtime:

cudaError_t cudaDriverGetVersion(int *version) { return noted(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) { return noted(cuDriverGetVersion(version)); }

cudaError_t cudaGetDeviceCount(int *count) {
  *count = int(devices().size());
  return noted(cuInit(0));
}

cudaError_t cudaGetDevice(int *number) {
  *number = current;
  return noted(cuInit(0));
}

cudaError_t cudaSetDevice(int number) {
  if (!device(number))
    return noted(CUDA_ERROR_INVALID_DEVICE);
  current = number;
  current_device();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int number) {
  if (!device(number))
    return noted(CUDA_ERROR_INVALID_DEVICE);
  *properties = properties_of(*device(number));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int number) {
  return noted(cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), number));
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int number) {
  return noted(cuDeviceGetPCIBusId(id, len, number));
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
  case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
  case cudaErrorNotReady: return "cudaErrorNotReady";
  case cudaErrorIllegalAddress: return "cudaErrorIllegalAddress";
  case cudaErrorPeerAccessAlreadyEnabled: return "cudaErrorPeerAccessAlreadyEnabled";
  case cudaErrorNotSupported: return "cudaErrorNotSupported";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  case cudaErrorStreamCaptureIsolation: return "cudaErrorStreamCaptureIsolation";
  case cudaErrorCapturedEvent: return "cudaErrorCapturedEvent";
  default: return "an error of the simulated CUDA runtime";
  }
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorInvalidDevice: return "invalid device ordinal";
  case cudaErrorNotSupported: return "operation not supported by the simulated CUDA runtime";
  default: return cudaGetErrorName(error);
  }
}

} // extern "C"
