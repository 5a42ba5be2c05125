/* What PyTorch's allocator asks of Tenure: one table of functions, of which the shim under PyTorch is given the address,
 * so that it links to nothing of Tenure's.
 *
 * A device is opened when it is first needed, with the options of configure(). What holds for all devices (history,
 * observers, callbacks, rounding) is said once, before or after a device is opened. Every function may be called from
 * any thread; functions that return a status follow tenure.h: last_error() says what went wrong, and a call that fails
 * changed nothing. No function lets a panic of Rust's out, and no callback may let an exception out.
 */
#ifndef TENURE_TORCH_H
#define TENURE_TORCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tenure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Grows with every change that an older shim would not understand. */
#define TENURE_TORCH_ABI 1

/* A private pool: PyTorch's MempoolId_t. */
typedef struct tenure_pool {
    uint64_t first, second;
} tenure_pool;

/* An object of the caller's that is handed over: drop(pointer) is called once, from any thread, when it is no longer
 * needed, be it that the call failed. A NULL pointer is no object, and is not dropped. */
typedef struct tenure_object {
    void *pointer;
    void (*drop)(void *pointer);
} tenure_object;

/* One figure over time, of bytes or a count. */
typedef struct tenure_stat {
    int64_t current, peak, allocated, freed;
} tenure_stat;

/* PyTorch's DeviceStats. The arrays: both pools, the small pool, the large pool. */
typedef struct tenure_statistics {
    tenure_stat allocation[3], segment[3], active[3], inactive_split[3];
    tenure_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
    tenure_stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size; /* -1: no limit */
} tenure_statistics;

/* What an observer of out-of-memory errors is told, in bytes. */
typedef struct tenure_out_of_memory {
    int device;
    uint64_t requested, allowed, total, free;
} tenure_out_of_memory;

typedef struct tenure_torch_api {
    size_t size;  /* of this struct: a shim that knows more than there is must refuse it */
    uint32_t abi; /* TENURE_TORCH_ABI */

    const char *(*last_error)(void);

    /* --- Devices --- */

    /* How devices are opened: as tenure_open() has it. TENURE_ALREADY_OPEN once one is. */
    tenure_status (*configure)(const char *options);
    /* Whether a device was needed yet. Those that were not have no memory, no statistics and no snapshot. */
    bool (*is_open)(int device);

    /* --- Blocks --- */

    /* A block of at least `bytes` bytes (more than 0) for `stream`. It takes the tag and key of this thread. `context`
     * goes with the block, and with the events that it makes. */
    tenure_status (*allocate)(int device, size_t bytes, void *stream, tenure_object context, void **address);
    /* Ends the use of a block, whichever device it lies on. `context` goes with the events that this makes. */
    tenure_status (*free)(void *address, tenure_object context);
    tenure_status (*record_stream)(void *address, void *stream);

    /* --- Figures and limits --- */

    tenure_status (*statistics)(int device, tenure_statistics *statistics);
    tenure_status (*reset_peak_statistics)(int device);
    tenure_status (*reset_accumulated_statistics)(int device);
    tenure_status (*set_memory_fraction)(int device, double fraction);

    /* --- Callbacks --- */

    /* Told of every out-of-memory error. */
    tenure_status (*add_out_of_memory_observer)(void (*observer)(void *user, const tenure_out_of_memory *error),
                                                tenure_object user);
    /* Called when memory runs short: frees what it can, and returns whether it may have freed something. */
    tenure_status (*add_free_memory_callback)(bool (*callback)(void *user), tenure_object user);

    /* --- Pools --- */

    /* Sends allocations on streams that pass the filter to a private pool, made if it is not there. The filter is called
     * on the allocating thread, and must not allocate. */
    tenure_status (*begin_pool)(int device, tenure_pool pool, bool (*filter)(void *user, void *stream),
                                tenure_object user);
    tenure_status (*end_pool)(int device, tenure_pool pool);
    tenure_status (*release_pool)(int device, tenure_pool pool);
    /* Gives the memory that no block lives on back: of a pool, or, for {0, 0}, of all that are not in use. */
    tenure_status (*release_cached)(int device, tenure_pool pool, tenure_object context);
} tenure_torch_api;

/* The table; it is there for as long as the process. */
const tenure_torch_api *tenure_torch_table(void);

#ifdef __cplusplus
}
#endif

#endif
