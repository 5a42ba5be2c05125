/* Kernels in CUDA C++, for C: launched by name, on the current stream, with the tensors that they read and write. The
 * sources are texts, which NVRTC compiles when one of their kernels is launched first. tenure_cuda.hpp is the same for
 * C++.
 */
#ifndef TENURE_CUDA_H
#define TENURE_CUDA_H

#include "tenure_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A source file. Its messages show `name`. */
typedef struct tenure_cuda_source {
    const char *name;
    const char *text;
} tenure_cuda_source;

/* Sources, each of which is compiled by itself, with NVRTC's options. It must not change, and lives as long as the
 * process: it is known by its address. */
typedef struct tenure_cuda_program {
    size_t source_count;
    const tenure_cuda_source *sources;
    size_t option_count;
    const char *const *options;
} tenure_cuda_program;

typedef enum tenure_cuda_kind {
    TENURE_CUDA_WRITE = 0, /* a tensor that the kernel writes, and may read */
    TENURE_CUDA_READ = 1,  /* a tensor that the kernel only reads */
    TENURE_CUDA_BYTES = 2  /* a number or a structure */
} tenure_cuda_kind;

/* An argument of a kernel. The kernel gets the address of a tensor's first element. */
typedef struct tenure_cuda_argument {
    int32_t kind;     /* a tenure_cuda_kind */
    size_t bytes;     /* the size of a number or a structure */
    const void *data; /* a tenure_tensor, or the address of a number or a structure */
} tenure_cuda_argument;

/* The number of blocks, the number of threads in a block, and the shared memory of a block in bytes, in addition to what
 * the kernel declares. */
typedef struct tenure_cuda_size {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared_bytes;
} tenure_cuda_size;

/* Launches a kernel on this thread's current stream of the tensors' device, and does not wait for it. `kernel` is the
 * name of an `extern "C"` kernel, or a C++ expression that names a kernel, such as `scale<float>`. A launch of no blocks
 * does nothing. The number and the sizes of the arguments are checked; their types are not. Like operations, it fails in
 * a thread with an open access. It records no gradients: see tenure_attach(). */
tenure_status tenure_cuda_launch(const tenure_cuda_program *program, const char *kernel, const tenure_cuda_size *size,
                                 const tenure_cuda_argument *arguments, size_t count);

/* Computes on the CPU what a kernel computes. The arguments are those of the launch, with copies of the tensors on the
 * CPU, which live during the call. It may be called by any thread, and by several at the same time. To fail, it returns
 * what tenure_fail() or another function returned. */
typedef tenure_status (*tenure_cuda_cpu_kernel)(void *context, const tenure_cuda_size *size,
                                                const tenure_cuda_argument *arguments, size_t count);

/* Sets the function that simulated devices, which run no kernels, call instead of a kernel. `function` and `context`
 * live as long as the process. */
tenure_status tenure_cuda_on_cpu(const tenure_cuda_program *program, const char *kernel,
                                 tenure_cuda_cpu_kernel function, void *context);

/* For code that launches kernels itself: writes this thread's current stream of the device of an access's tensors, a
 * cudaStream_t. What uses the tensors goes to this stream, and is put there before the access ends; nothing needs to
 * wait for it. Until the access ends, CUDA's libraries use this device in this thread. */
tenure_status tenure_access_stream(tenure_access *access, void **stream);

#ifdef __cplusplus
}
#endif

#endif
