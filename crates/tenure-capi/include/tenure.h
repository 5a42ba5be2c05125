/* Tenure's memory of a device, for C.
 *
 * A device is a number, as CUDA counts. It is opened once and stays open until the process ends. Every function may be
 * called from any thread, and returns TENURE_OK or says why not; tenure_last_error() says it in words. A call that fails
 * changed nothing. A stream is a CUstream (a cudaStream_t is one), NULL being the default stream. It needs no
 * registration, and must not be destroyed before tenure_empty_cache() was called with none of its blocks live.
 * cudaStreamPerThread means another stream in each thread, which cannot be told apart here: create one.
 *
 *     void *block;
 *     if (tenure_open(0, NULL) || tenure_alloc(0, 1 << 20, stream, &block)) {
 *         fprintf(stderr, "%s\n", tenure_last_error());
 *         exit(1);
 *     }
 *     tenure_record_stream(0, block, other_stream);   // used there too: not reused before that is done
 *     tenure_free(0, block);
 */
#ifndef TENURE_H
#define TENURE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tenure_status {
    TENURE_OK = 0,
    TENURE_OUT_OF_MEMORY = 1,   /* tenure_last_error() says who holds what, and what to try */
    TENURE_NOT_OPEN = 2,        /* tenure_open() was not called for this device */
    TENURE_ALREADY_OPEN = 3,    /* the device is open, with the options that it was opened with */
    TENURE_UNKNOWN_ADDRESS = 4, /* not a live block: freed before, or from elsewhere */
    TENURE_INVALID = 5,         /* an argument, or an option, makes no sense */
    TENURE_DRIVER_FAILED = 6,   /* a driver call failed */
    TENURE_PANIC = 7,           /* a defect in Tenure: please report it */
    TENURE_NOT_SHAREABLE = 8    /* not a live block in memory that processes can share */
} tenure_status;

/* Tenure's version, such as "0.1.0". */
const char *tenure_version(void);

/* What went wrong in the last call of this thread that failed; "" if none did. Valid until the next one that fails. */
const char *tenure_last_error(void);

/* Opens a device. `options` is NULL, or NAME=VALUE separated by commas:
 *     driver=cuda|sim              the device: real (the default), or simulated, with any numbers for streams
 *     allocator=paged|native|expandable
 *                                  Tenure's (the default), or PyTorch's, with or without expandable segments
 *     fraction=0.9                 the part of the device that this process may hold
 *     capacity=BYTES               bytes of a simulated device
 */
tenure_status tenure_open(int device, const char *options);

/* A block of at least `bytes` bytes, for `stream`, at `*block`. NULL for 0 bytes. TENURE_INVALID for
 * cudaStreamPerThread. */
tenure_status tenure_alloc(int device, size_t bytes, void *stream, void **block);

/* Ends the use of a block. Work already put on its streams may still use it. NULL is ignored. Not
 * in a stream's callback, where CUDA refuses calls: the block may stay live, with TENURE_DRIVER_FAILED. */
tenure_status tenure_free(int device, void *block);

/* Says that `stream` uses a block too: once freed, it is not reused before what was put on `stream` is done.
 * TENURE_INVALID for cudaStreamPerThread. */
tenure_status tenure_record_stream(int device, void *block, void *stream);

/* Gives all memory that no block lives on back to the device. Waits for work on freed blocks. */
tenure_status tenure_empty_cache(int device);

/* Limits what this process may hold to a part of the device, from 0 to 1. */
tenure_status tenure_set_memory_fraction(int device, double fraction);

/* The counters, under the names of torch.cuda.memory_stats(), as a JSON object. To be freed by tenure_free_buffer().
 * A peak of several streams (allocator=paged) is the sum of theirs: an upper bound of what was there at once. */
tenure_status tenure_stats_json(int device, char **json, size_t *bytes);

/* Sets every peak of the counters to the current value. */
tenure_status tenure_reset_peak_stats(int device);

/* All segments and blocks, as the pickle that torch.cuda.memory._dump_snapshot() writes. To be freed by
 * tenure_free_buffer(). */
tenure_status tenure_snapshot(int device, char **pickle, size_t *bytes);

/* Frees what tenure_stats_json() and tenure_snapshot() gave. NULL is ignored. */
void tenure_free_buffer(char *buffer, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
