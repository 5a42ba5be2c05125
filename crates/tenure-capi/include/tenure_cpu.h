/* The functions of Tenure that PyTorch's CPU allocator calls. The shim under PyTorch is given the address of this one
 * table, and so links to nothing of Tenure's. Every function may be called from any thread. No function lets a Rust
 * panic out.
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
    /* Does what tenure_last_error() does. */
    const char *(*last_error)(void);
    /* Returns whether Tenure serves the calling thread. If not, the shim leaves the call to PyTorch's own allocator. */
    bool (*is_chosen)(void);
    /* Allocates memory for a thread that Tenure serves; NULL for 0 bytes. */
    tenure_status (*allocate)(size_t bytes, void **data);
    /* Frees memory of allocate(), from any thread. Returns false, and does nothing, for any other memory. */
    bool (*free)(void *data);
} tenure_cpu_api;

/* Returns the table, which lives as long as the process. */
const tenure_cpu_api *tenure_cpu_table(void);

#ifdef __cplusplus
}
#endif

#endif
