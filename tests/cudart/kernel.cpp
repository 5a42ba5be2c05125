// Kernels: known by name, and launched without effect, except for two kinds that tests need.
//
// `spin_kernel` (`torch.cuda._sleep`) keeps its stream busy for 1 ns a cycle. Fills of contiguous tensors
// (`torch.zeros`, `torch.full`, `fill_`) write their value. All other kernels do nothing: their results are whatever
// the memory held. Elementwise kernels (`add_`, `relu_`) check that they could write their result.

#include <sys/mman.h>

#include <cstring>
#include <array>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "device.h"
#include "memory.h"

using namespace simulated;

namespace {

/// The kernels of a program, by the address of the function that launches them. Filled while libraries are loaded.
std::unordered_map<const void *, const char *> &names() {
  static auto *all = new std::unordered_map<const void *, const char *>;
  return *all;
}

/// The bytes that a typical elementwise kernel reads and writes for each element: two inputs and one output of two
/// bytes.
constexpr size_t ELEMENT = 6;

bool contains(std::string_view name, std::string_view part) { return name.find(part) != name.npos; }

/// Returns the size of the values that a fill writes, from the mangled name of its functor's type; 0 if it is unknown.
size_t value_size(std::string_view name) {
  constexpr std::string_view FUNCTOR = "11FillFunctorI";
  const size_t at = name.find(FUNCTOR);
  if (at == name.npos)
    return 0;
  const std::string_view type = name.substr(at + FUNCTOR.size());
  constexpr std::pair<std::string_view, size_t> SIZES[] = {
      {"f", 4}, {"d", 8}, {"i", 4}, {"j", 4}, {"l", 8}, {"m", 8}, {"s", 2}, {"t", 2}, {"a", 1}, {"h", 1}, {"b", 1},
      {"N3c104HalfE", 2}, {"N3c108BFloat16E", 2}, {"N3c107complexIfE", 8}, {"N3c107complexIdE", 16}};
  for (const auto &[mangled, size] : SIZES)
    if (type.substr(0, mangled.size()) == mangled)
      return size;
  return 0;
}

/// Returns the work of a kernel on a device, with a copy of its arguments.
Work work_of(std::string_view name, void **arguments, const Device &user) {
  if (contains(name, "11spin_kernelE")) {
    const int64_t cycles = *static_cast<int64_t *>(arguments[0]);
    return [cycles] { return cycles; };
  }
  // The arguments: (int count, Functor functor, std::array<char *, N> operands, ...). The kernel writes the first
  // operand. The functor of a fill is its value.
  if (contains(name, "vectorized_elementwise_kernel") || contains(name, "unrolled_elementwise_kernel")) {
    const int count = *static_cast<int *>(arguments[0]);
    char *target = *static_cast<char **>(arguments[2]);
    const size_t size = value_size(name);
    std::array<char, 16> value;
    std::memcpy(value.data(), arguments[1], size);
    return [=, &user] {
      check_access(user, reinterpret_cast<Address>(target), count * (size ? size : 1), PROT_WRITE);
      for (int i = 0; size && has_content(count * size) && i < count; ++i)
        std::memcpy(target + i * size, value.data(), size);
      return memory_time(count * ELEMENT);
    };
  }
  return [] { return memory_time(0); };
}

cudaError_t launch(const void *function, void **arguments, cudaStream_t handle) {
  const Stream *it = stream(handle);
  if (!it)
    return noted(CUDA_ERROR_INVALID_HANDLE);
  const auto known = names().find(function);
  return noted(submit(handle, work_of(known == names().end() ? "" : known->second, arguments, *it->device)));
}

struct Configuration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};
thread_local std::vector<Configuration> configurations;

} // namespace

extern "C" {

// Functions that compiled CUDA code calls by itself:

void **__cudaRegisterFatBinary(void *) {
  static void *module = nullptr;
  return &module;
}
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
char __cudaInitModule(void **) { return 1; }
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

void __cudaRegisterFunction(void **, const char *function, char *, const char *name, int, uint3 *, uint3 *, dim3 *,
                            dim3 *, int *) {
  names()[function] = name;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void *>(function));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void **arguments, size_t, cudaStream_t stream) {
  return launch(kernel, arguments, stream);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st *stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  const Configuration &last = configurations.back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t *>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}

// Functions that programs call:

cudaError_t cudaLaunchKernel(const void *function, dim3, dim3, void **arguments, size_t, cudaStream_t stream) {
  return launch(function, arguments, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3, dim3, void **arguments, size_t,
                                        cudaStream_t stream) {
  return launch(function, arguments, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *configuration, const void *function, void **arguments) {
  return launch(function, arguments, configuration->stream);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}

// Kernels in libraries that are loaded while the program runs are refused: they would have to be read from them.

cudaError_t cudaLibraryLoadData(cudaLibrary_t *, const void *, cudaJitOption *, void **, unsigned, cudaLibraryOption *,
                                void **, unsigned) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryLoadFromFile(cudaLibrary_t *, const char *, cudaJitOption *, void **, unsigned,
                                    cudaLibraryOption *, void **, unsigned) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryUnload(cudaLibrary_t) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaLibraryGetGlobal(void **, size_t *, cudaLibrary_t, const char *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryGetManaged(void **, size_t *, cudaLibrary_t, const char *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryGetUnifiedFunction(void **, cudaLibrary_t, const char *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t *, cudaLibrary_t, const char *) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}
cudaError_t cudaLibraryGetKernelCount(unsigned *, cudaLibrary_t) { return noted(CUDA_ERROR_NOT_SUPPORTED); }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) {
  return noted(CUDA_ERROR_NOT_SUPPORTED);
}

/// Returns the address of a device variable, which lives where its shadow on the host does.
cudaError_t cudaGetSymbolAddress(void **address, const void *symbol) {
  *address = const_cast<void *>(symbol);
  return cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *source, size_t bytes, size_t offset, cudaMemcpyKind) {
  std::memcpy(static_cast<char *>(const_cast<void *>(symbol)) + offset, source, bytes);
  return cudaSuccess;
}

} // extern "C"
