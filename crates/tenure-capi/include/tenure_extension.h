/* Extensions, for C: libraries with functions that a program opens while it runs, such as by tenure.extension.load() in
 * Python. tenure_extension.hpp is the same for C++, and easier.
 *
 * The library is linked with none of Tenure's: it finds the functions of tenure.h and tenure_tensor.h in the program.
 */
#ifndef TENURE_EXTENSION_H
#define TENURE_EXTENSION_H

#include "tenure_operations.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The version of what this header describes. */
#define TENURE_ABI 1

/* A function of an extension. It may be called by any thread, and by several at the same time. It checks the number and
 * the types of its arguments, which refer to what the caller owns, and writes a result, which owns what it refers to:
 * NONE, BOOL, INT, FLOAT, DTYPE, TENSOR with a handle, or one of tenure_owned_text(), tenure_owned_tensors() and
 * tenure_owned_tuple(). To fail, it returns what tenure_fail() or another function returned. */
typedef struct tenure_function {
    const char *name;
    const char *doc;
    tenure_status (*call)(void *context, const tenure_value *arguments, size_t count, tenure_value *result);
    void *context;
} tenure_function;

typedef struct tenure_extension {
    uint32_t abi; /* TENURE_ABI */
    size_t count;
    const tenure_function *functions;
} tenure_extension;

/* The library defines this function. What it returns lives as long as the process. To fail, it calls tenure_fail() and
 * returns NULL. */
__attribute__((visibility("default"))) const tenure_extension *tenure_extension_entry(void);

#ifdef __cplusplus
}
#endif

#endif
