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
    TENURE_OUT_OF_MEMORY = 1,       /* tenure_last_error() says who holds the memory, and what to try */
    TENURE_NOT_OPEN = 2,            /* tenure_open() was not called for this device */
    TENURE_ALREADY_OPEN = 3,        /* the device is open, with the options of the first call */
    TENURE_UNKNOWN_ADDRESS = 4,     /* not a live block: freed before, or not Tenure's */
    TENURE_INVALID = 5,             /* an argument or an option is invalid */
    TENURE_DRIVER_FAILED = 6,       /* a driver call failed */
    TENURE_PANIC = 7,               /* a defect in Tenure: please report it */
    TENURE_NOT_SHAREABLE = 8,       /* not a live block in memory that processes can share */
    TENURE_WRONG_TYPE = 9,          /* an argument has a type that the function does not take */
    TENURE_NO_SHARED_CACHE = 10,    /* it was not allocated, received or sent, or its owner is gone */
    TENURE_SHARED_CACHE_IN_USE = 11 /* the shared cache is used in a way that excludes the call */
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
 *     headroom=BYTES               bytes of the device that are left free for others
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

/* The shared cache: device memory that processes of one user share, by PipeSwitch's five calls.
 *
 * One process allocates a cache of a device and sends it; others receive it. On each device, a process owns at most one
 * cache and works in at most one, its own if it has received none. Each process inserts ranges of it into its
 * allocator: tenure_alloc() then takes blocks from them for the stream that was given.
 *
 *     tenure_allocate_shared_cache(0, pool_bytes, parameter_bytes, computation_bytes); // the owner
 *     tenure_send_shared_cache(0, NULL);
 *     tenure_insert_shared_cache_for_parameter(0, stream, TENURE_SHARED_WRITE);
 *     tenure_alloc(0, bytes, stream, &weights);                       // and writes them
 *     tenure_publish_shared_parameters(0);
 *
 *     tenure_recv_shared_cache(0, NULL, 0, 0, 60.0);                  // any other process
 *     tenure_insert_shared_cache_for_parameter(0, stream, TENURE_SHARED_READ);
 *     tenure_alloc(0, bytes, stream, &weights);                       // reads them, without a copy
 *     tenure_insert_shared_cache_for_computation(0, stream);
 *
 * Memory that a process has mapped stays valid when any other process dies, even the owner. */

/* Allocates a cache, which this process owns until it exits: first a range for parameters, then one for computation,
 * then the rest of `pool_bytes`. Sizes are multiples of 2 MiB. */
tenure_status tenure_allocate_shared_cache(int device, size_t pool_bytes, size_t parameter_bytes,
                                           size_t computation_bytes);

/* Sends the cache to every process of this user that receives it, now and later. Returns at once. A second call with
 * the same socket does nothing. `socket` is a path, or NULL for the socket of `tenure memory daemon`. */
tenure_status tenure_send_shared_cache(int device, const char *socket);

/* Maps the cache that is sent at `socket`, or at the default one if it is NULL. Waits up to `wait_s` seconds until it
 * is sent. Later, blocks for computation wait as long for other processes. Replaces a cache that was received before,
 * if nothing of it is inserted. Sizes of 0 are those of the sender; others are needed if its cache is not divided in
 * two ranges. */
tenure_status tenure_recv_shared_cache(int device, const char *socket, size_t parameter_bytes,
                                       size_t computation_bytes, double wait_s);

/* Gives `bytes` bytes of the cache from `offset` to the large blocks of `stream`, which has them alone until
 * tenure_clear_shared_cache(). */
tenure_status tenure_insert_shared_cache(int device, size_t bytes, size_t offset, void *stream);

typedef enum tenure_shared_access {
    TENURE_SHARED_READ = 0,    /* reads published parameters: the same blocks, in the order of the writer */
    TENURE_SHARED_WRITE = 1,   /* writes, until tenure_publish_shared_parameters() */
    TENURE_SHARED_PLACE = 2,   /* takes places to read what another process transfers there later */
    TENURE_SHARED_TRANSFER = 3 /* writes for the processes that took places; tenure_clear_shared_cache() ends it */
} tenure_shared_access;

/* Gives the range for parameters to all blocks of `stream`, one after the other, for an access of
 * tenure_shared_access. One process writes at a time, and none while others read what is published. */
tenure_status tenure_insert_shared_cache_for_parameter(int device, void *stream, int access);

/* Gives the range for computation to the large blocks of `stream`. The stream has the range to itself from its first
 * block there, which waits for other streams and processes, until its last one was freed. */
tenure_status tenure_insert_shared_cache_for_computation(int device, void *stream);

/* Publishes the parameters that were written: others can read them, and no process can write them. Waits for the
 * device. */
tenure_status tenure_publish_shared_parameters(int device);

/* Takes all ranges out of the allocator, so that others can insert them. Waits for the device. A range with live blocks
 * stays, with TENURE_SHARED_CACHE_IN_USE. */
tenure_status tenure_clear_shared_cache(int device);

#ifdef __cplusplus
}
#endif

#endif
