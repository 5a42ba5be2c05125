// The look-up of driver functions by programs, and functions that the simulation does not have.

#include <dlfcn.h>

#include <string>

#include "device.h"

using namespace simulated;

namespace simulated {

namespace {

/// Returns this library, which is the driver's too.
void *own_library() {
  static void *const library = [] {
    Dl_info own;
    dladdr(reinterpret_cast<void *>(&cuGetProcAddress), &own);
    return dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  }();
  return library;
}

} // namespace

void *driver_function(const char *symbol) {
  using Find = decltype(cuGetProcAddress);
  static auto *const find = reinterpret_cast<Find *>(dlsym(own_library(), "cuGetProcAddress_v2"));
  void *function = nullptr;
  find(symbol, &function, CUDA_VERSION, CU_GET_PROC_ADDRESS_DEFAULT, nullptr);
  return function;
}

} // namespace simulated

extern "C" {

CUresult cuGetProcAddress(const char *symbol, void **function, int, cuuint64_t,
                          CUdriverProcAddressQueryResult *status) {
  *function = nullptr;
  for (const char *version : {"_v2", ""})
    if (!*function)
      *function = dlsym(own_library(), (std::string(symbol) + version).c_str());
  if (status)
    *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *status) {
  *function = driver_function(symbol);
  if (status)
    *status = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

// A kernel compiled while the program runs is a compiler's output, which cannot be run here.

CUresult cuModuleLoadData(CUmodule *, const void *) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuModuleGetFunction(CUfunction *, CUmodule, const char *) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                        void **, void **) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

} // extern "C"
