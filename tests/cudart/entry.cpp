// The look-up of driver functions by programs, and functions that the simulation does not have.

#include <dlfcn.h>

#include <string>

#include "device.h"

using namespace simulated;

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult *status) {
  Dl_info own;
  dladdr(reinterpret_cast<void *>(&cudaGetDriverEntryPointByVersion), &own);
  static void *library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  *function = nullptr;
  for (const char *version : {"_v2", ""})
    if (!*function)
      *function = dlsym(library, (std::string(symbol) + version).c_str());
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
