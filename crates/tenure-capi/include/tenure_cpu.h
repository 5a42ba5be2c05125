/* What PyTorch's allocator of the CPU asks of Tenure: one table of functions, of which the shim under PyTorch is given the
 * address, so that it links to nothing of Tenure's. Every function may be called from any thread. No function lets a
 * panic of Rust's out.
 */
#ifndef TENURE_CPU_H
#define TENURE_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tenure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change that an older shim would not understand. */
#define TENURE_CPU_ABI 1

typedef struct tenure_cpu_api {
    size_t size; /* of this struct */
    uint32_t abi;
    /* As tenure_last_error(). */
    const char *(*last_error)(void);
    /* Whether the calling thread has chosen where its memory comes from. If not, that is none of Tenure's business. */
    bool (*is_chosen)(void);
    /* Memory for a thread that has; NULL for 0 bytes. */
    tenure_status (*allocate)(size_t bytes, void **data);
    /* Frees memory of allocate(), from any thread. False if it is none: then nothing was done. */
    bool (*free)(void *data);
} tenure_cpu_api;

/* The table; it is there for as long as the process. */
const tenure_cpu_api *tenure_cpu_table(void);

#ifdef __cplusplus
}
#endif

#endif
