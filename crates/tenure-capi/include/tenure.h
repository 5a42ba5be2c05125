/* Tenure's device memory, for C.
 *
 * A device is a number, as CUDA counts. It is opened once and stays open until the process ends. Every function may be
 * called from any thread, and returns TENURE_OK or the kind of failure; tenure_last_error() gives the message. A call
 * that fails changes nothing. A stream is a CUstream (a cudaStream_t is one); NULL is the default stream. A stream
 * needs no registration, but must not be destroyed before tenure_empty_cache() was called with none of its blocks live.
 * cudaStreamPerThread means another stream in each thread, which Tenure cannot tell apart: create a stream instead.
 *
 *     void *block;
 *     if (tenure_open(0, NULL) || tenure_alloc(0, 1 << 20, stream, &block)) {
 *         fprintf(stderr, "%s\n", tenure_last_error());
 *         exit(1);
 *     }
 *     tenure_record_stream(0, block, other_stream);   // used there too: not reused before that work is done
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
    TENURE_OUT_OF_MEMORY = 1,   /* tenure_last_error() says who holds the memory, and what to try */
    TENURE_NOT_OPEN = 2,        /* tenure_open() was not called for this device */
    TENURE_ALREADY_OPEN = 3,    /* the device is open, with the options of the first call */
    TENURE_UNKNOWN_ADDRESS = 4, /* not a live block: freed before, or not Tenure's */
    TENURE_INVALID = 5,         /* an argument or an option is invalid */
    TENURE_DRIVER_FAILED = 6,   /* a driver call failed */
    TENURE_PANIC = 7,           /* a defect in Tenure: please report it */
    TENURE_NOT_SHAREABLE = 8,   /* not a live block in memory that processes can share */
    TENURE_WRONG_TYPE = 9       /* an argument has a type that the function does not take */
} tenure_status;

/* Returns Tenure's version, such as "0.1.0". */
const char *tenure_version(void);

/* Returns the message of this thread's last call that failed; "" if none did. It is valid until the next one fails. */
const char *tenure_last_error(void);

/* Opens a device. `options` is NULL, or NAME=VALUE separated by commas:
 *     driver=cuda|sim              the device: real (the default), or simulated, with any numbers for streams
 *     allocator=paged|native|expandable
 *                                  Tenure's (the default), or PyTorch's, with or without expandable segments
 *     fraction=0.9                 the part of the device that this process may hold
 *     capacity=BYTES               bytes of a simulated device
 */
tenure_status tenure_open(int device, const char *options);

/* Allocates a block of at least `bytes` bytes for `stream`, and stores its address in `*block`: NULL for 0 bytes.
 * TENURE_INVALID for cudaStreamPerThread. */
tenure_status tenure_alloc(int device, size_t bytes, void *stream, void **block);

/* Ends the use of a block. Work that was already put on its streams may still use it. NULL is ignored. Must not be
 * called in a stream's callback, where CUDA refuses calls: the block may then stay live, with TENURE_DRIVER_FAILED. */
tenure_status tenure_free(int device, void *block);

/* Records that `stream` uses a block too: once freed, the block is not reused before all work now on `stream` is done.
 * TENURE_INVALID for cudaStreamPerThread. */
tenure_status tenure_record_stream(int device, void *block, void *stream);

/* Gives all memory without live blocks back to the device. Waits for work on freed blocks. */
tenure_status tenure_empty_cache(int device);

/* Limits the memory that this process may hold to a fraction of the device, from 0 to 1. */
tenure_status tenure_set_memory_fraction(int device, double fraction);

/* Writes the counters, under the names of torch.cuda.memory_stats(), as a JSON object, which tenure_free_buffer()
 * frees. A peak over several streams (allocator=paged) is the sum of their peaks: an upper bound of the memory held at
 * once. */
tenure_status tenure_stats_json(int device, char **json, size_t *bytes);

/* Sets the peak of every counter to its current value. */
tenure_status tenure_reset_peak_stats(int device);

/* Writes all segments and blocks as the pickle that torch.cuda.memory._dump_snapshot() writes. tenure_free_buffer()
 * frees it. */
tenure_status tenure_snapshot(int device, char **pickle, size_t *bytes);

/* Frees a buffer of tenure_stats_json() or tenure_snapshot(). NULL is ignored. */
void tenure_free_buffer(char *buffer, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
