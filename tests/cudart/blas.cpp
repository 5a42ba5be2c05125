// Dense matrix products: cuBLAS and cuBLASLt. Programs find these functions in place of the real libraries'.
//
// Like other kernels, products compute nothing: their results are whatever the memory held. They check that they could
// read and write their operands. Factorizations and triangular solvers are refused.
//
// The libraries' headers need more of CUDA's headers than PyTorch installs, so enumerations are ints here, and no
// pointer has a type.

#include <library_types.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "device.h"
#include "memory.h"

using namespace simulated;

namespace {

enum Status { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };

struct Handle {
  cudaStream_t stream = nullptr;
  int math_mode = 0, pointer_mode = 0;
};

/// Matrices one after another, stored by columns, as in cuBLAS.
struct Matrices {
  const void *address;
  int type;
  int64_t rows, columns, stride;
  int64_t batch = 1, batch_stride = 0;

  size_t bytes() const {
    if (rows <= 0 || columns <= 0 || batch <= 0)
      return 0;
    return ((batch - 1) * batch_stride + (columns - 1) * stride + rows) * element_bytes();
  }

private:
  size_t element_bytes() const {
    switch (type) {
    case CUDA_R_8I:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return 1;
    case CUDA_R_16F:
    case CUDA_R_16BF:
      return 2;
    case CUDA_R_64F:
    case CUDA_C_32F:
      return 8;
    case CUDA_C_64F:
      return 16;
    default:
      return 4;
    }
  }
};

void check(const Device &user, const Matrices &matrices, int protection) {
  check_access(user, reinterpret_cast<Address>(matrices.address), matrices.bytes(), protection);
}

int multiply(cudaStream_t handle, const Matrices &left, const Matrices &right, const Matrices &product) {
  const Stream *it = stream(handle);
  if (!it)
    return INVALID_VALUE;
  const Work work = [=, &user = *it->device] {
    check(user, left, PROT_READ);
    check(user, right, PROT_READ);
    check(user, product, PROT_WRITE);
    return memory_time(left.bytes() + right.bytes() + product.bytes());
  };
  return submit(handle, work) == CUDA_SUCCESS ? SUCCESS : EXECUTION_FAILED;
}

/// An operand that is `rows` x `columns` after it is transposed, if `how` says so.
Matrices operand(int how, const void *address, int type, int64_t rows, int64_t columns, int64_t stride,
                 int64_t batch = 1, int64_t batch_stride = 0) {
  if (how != 0)
    std::swap(rows, columns);
  return {address, type, rows, columns, stride, batch, batch_stride};
}

} // namespace

extern "C" {

int cublasCreate_v2(Handle **handle) {
  *handle = new Handle;
  return SUCCESS;
}
int cublasDestroy_v2(Handle *handle) {
  delete handle;
  return SUCCESS;
}
int cublasSetStream_v2(Handle *handle, cudaStream_t stream) {
  handle->stream = stream;
  return SUCCESS;
}
int cublasSetWorkspace_v2(Handle *, void *, size_t) { return SUCCESS; }
int cublasSetSmCountTarget(Handle *, int) { return SUCCESS; }
int cublasSetMathMode(Handle *handle, int mode) {
  handle->math_mode = mode;
  return SUCCESS;
}
int cublasGetMathMode(Handle *handle, int *mode) {
  *mode = handle->math_mode;
  return SUCCESS;
}
int cublasSetPointerMode_v2(Handle *handle, int mode) {
  handle->pointer_mode = mode;
  return SUCCESS;
}
int cublasGetPointerMode_v2(Handle *handle, int *mode) {
  *mode = handle->pointer_mode;
  return SUCCESS;
}

int cublasGemmStridedBatchedEx(Handle *handle, int how_a, int how_b, int m, int n, int k, const void *, const void *a,
                               int type_a, int stride_a, long long next_a, const void *b, int type_b, int stride_b,
                               long long next_b, const void *, void *c, int type_c, int stride_c, long long next_c,
                               int batch, int, int) {
  return multiply(handle->stream, operand(how_a, a, type_a, m, k, stride_a, batch, next_a),
                  operand(how_b, b, type_b, k, n, stride_b, batch, next_b), {c, type_c, m, n, stride_c, batch, next_c});
}

int cublasGemmEx(Handle *handle, int how_a, int how_b, int m, int n, int k, const void *, const void *a, int type_a,
                 int stride_a, const void *b, int type_b, int stride_b, const void *, void *c, int type_c, int stride_c,
                 int, int) {
  return multiply(handle->stream, operand(how_a, a, type_a, m, k, stride_a), operand(how_b, b, type_b, k, n, stride_b),
                  {c, type_c, m, n, stride_c});
}

int cublasSgemmEx(Handle *handle, int how_a, int how_b, int m, int n, int k, const void *, const void *a, int type_a,
                  int stride_a, const void *b, int type_b, int stride_b, const void *, void *c, int type_c,
                  int stride_c) {
  return cublasGemmEx(handle, how_a, how_b, m, n, k, nullptr, a, type_a, stride_a, b, type_b, stride_b, nullptr, c,
                      type_c, stride_c, 0, 0);
}

// Functions that exist once for each type.
#define OF_TYPE(LETTER, TYPE)                                                                                           \
  int cublas##LETTER##gemmStridedBatched(Handle *handle, int how_a, int how_b, int m, int n, int k, const void *,       \
                                         const void *a, int stride_a, long long next_a, const void *b, int stride_b,    \
                                         long long next_b, const void *, void *c, int stride_c, long long next_c,       \
                                         int batch) {                                                                   \
    return multiply(handle->stream, operand(how_a, a, TYPE, m, k, stride_a, batch, next_a),                             \
                    operand(how_b, b, TYPE, k, n, stride_b, batch, next_b),                                             \
                    {c, TYPE, m, n, stride_c, batch, next_c});                                                          \
  }                                                                                                                     \
  int cublas##LETTER##gemm_v2(Handle *handle, int how_a, int how_b, int m, int n, int k, const void *, const void *a,   \
                              int stride_a, const void *b, int stride_b, const void *, void *c, int stride_c) {         \
    return multiply(handle->stream, operand(how_a, a, TYPE, m, k, stride_a), operand(how_b, b, TYPE, k, n, stride_b),   \
                    {c, TYPE, m, n, stride_c});                                                                         \
  }                                                                                                                     \
  int cublas##LETTER##gemv_v2(Handle *handle, int how, int m, int n, const void *, const void *a, int stride_a,         \
                              const void *x, int step_x, const void *, void *y, int step_y) {                           \
    const int to = how == 0 ? m : n, from = how == 0 ? n : m;                                                           \
    return multiply(handle->stream, {a, TYPE, m, n, stride_a}, {x, TYPE, 1, from, std::abs(step_x)},                    \
                    {y, TYPE, 1, to, std::abs(step_y)});                                                                \
  }                                                                                                                     \
  int cublas##LETTER##trsm_v2(...) { return NOT_SUPPORTED; }                                                            \
  int cublas##LETTER##trsmBatched(...) { return NOT_SUPPORTED; }                                                        \
  int cublas##LETTER##getrfBatched(...) { return NOT_SUPPORTED; }                                                       \
  int cublas##LETTER##getrsBatched(...) { return NOT_SUPPORTED; }                                                       \
  int cublas##LETTER##geqrfBatched(...) { return NOT_SUPPORTED; }                                                       \
  int cublas##LETTER##gelsBatched(...) { return NOT_SUPPORTED; }

OF_TYPE(S, CUDA_R_32F)
OF_TYPE(D, CUDA_R_64F)
OF_TYPE(C, CUDA_C_32F)
OF_TYPE(Z, CUDA_C_64F)

int cublasDotEx(Handle *handle, int n, const void *x, int type_x, int step_x, const void *y, int type_y, int step_y,
                void *, int, int) {
  return multiply(handle->stream, {x, type_x, 1, n, std::abs(step_x)}, {y, type_y, 1, n, std::abs(step_y)},
                  {nullptr, type_x, 0, 0, 0});
}

#define DOT(NAME, TYPE)                                                                                                 \
  int cublas##NAME##_v2(Handle *handle, int n, const void *x, int step_x, const void *y, int step_y, void *result) {    \
    return cublasDotEx(handle, n, x, TYPE, step_x, y, TYPE, step_y, result, TYPE, TYPE);                                \
  }

DOT(Sdot, CUDA_R_32F)
DOT(Ddot, CUDA_R_64F)
DOT(Cdotu, CUDA_C_32F)
DOT(Cdotc, CUDA_C_32F)
DOT(Zdotu, CUDA_C_64F)
DOT(Zdotc, CUDA_C_64F)

// cuBLASLt. A layout is a `Matrices` without an address. Descriptions of products and preferences are not kept.

size_t cublasLtGetVersion() { return 130000; }

int cublasLtMatmulDescCreate(void **it, int, int) {
  *it = nullptr;
  return SUCCESS;
}
int cublasLtMatmulDescDestroy(void *) { return SUCCESS; }
int cublasLtMatmulDescSetAttribute(void *, int, const void *, size_t) { return SUCCESS; }

int cublasLtMatmulPreferenceCreate(void **it) {
  *it = nullptr;
  return SUCCESS;
}
int cublasLtMatmulPreferenceDestroy(void *) { return SUCCESS; }
int cublasLtMatmulPreferenceSetAttribute(void *, int, const void *, size_t) { return SUCCESS; }

int cublasLtMatrixLayoutCreate(Matrices **it, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  *it = new Matrices{nullptr, type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride};
  return SUCCESS;
}
int cublasLtMatrixLayoutDestroy(Matrices *it) {
  delete it;
  return SUCCESS;
}
int cublasLtMatrixLayoutSetAttribute(Matrices *it, int attribute, const void *value, size_t) {
  constexpr int BATCH_COUNT = 5, STRIDED_BATCH_OFFSET = 6;
  if (attribute == BATCH_COUNT)
    it->batch = *static_cast<const int32_t *>(value);
  if (attribute == STRIDED_BATCH_OFFSET)
    it->batch_stride = *static_cast<const int64_t *>(value);
  return SUCCESS;
}

/// Fills `results`, an array of structures whose zeros mean success and an algorithm without a workspace.
int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *, void *, int, void *results,
                                   int *count) {
  constexpr size_t RESULT_BYTES = 96;
  std::memset(results, 0, RESULT_BYTES);
  *count = 1;
  return SUCCESS;
}

// Named algorithms, with which PyTorch chooses others than the heuristic's.
int cublasLtMatmulAlgoInit(...) { return NOT_SUPPORTED; }
int cublasLtMatmulAlgoCheck(...) { return NOT_SUPPORTED; }
int cublasLtMatmulAlgoConfigSetAttribute(...) { return NOT_SUPPORTED; }
int cublasLtMatmulAlgoConfigGetAttribute(...) { return NOT_SUPPORTED; }

int cublasLtMatmul(void *, void *, const void *, const void *a, const Matrices *layout_a, const void *b,
                   const Matrices *layout_b, const void *, const void *, const Matrices *, void *d,
                   const Matrices *layout_d, const void *, void *, size_t, cudaStream_t stream) {
  const auto at = [](const void *address, Matrices layout) {
    layout.address = address;
    return layout;
  };
  return multiply(stream, at(a, *layout_a), at(b, *layout_b), at(d, *layout_d));
}

}
