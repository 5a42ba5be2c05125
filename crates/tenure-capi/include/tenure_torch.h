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
#define TENURE_TORCH_ABI 4

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
    int64_t num_oom_rejections; /* of TENURE_REJECT_ABOVE, not in num_ooms */
} tenure_statistics;

/* What an observer of out-of-memory errors is told, in bytes. */
typedef struct tenure_out_of_memory {
    int device;
    uint64_t requested, allowed, allocated, total, free;
    bool rejected; /* by TENURE_REJECT_ABOVE */
} tenure_out_of_memory;

/* Something that happened: PyTorch's TraceEntry. `action` numbers PyTorch's actions in their order. `context` and `note`
 * are the pointers of the objects that were handed over, or NULL; they live at least until the function that is told of
 * the event returns. */
typedef struct tenure_event {
    int action, device;
    uint64_t address, bytes;
    void *stream;
    tenure_pool pool;
    int64_t time_us; /* since 1970 */
    void *context, *note;
} tenure_event;

/* A segment of a snapshot, whose blocks follow. */
typedef struct tenure_segment {
    int device;
    bool is_large, is_expandable;
    uint64_t made; /* its number in the order in which segments were made; 0 if it was not made as one */
    uint64_t address;
    void *stream;
    tenure_pool pool;
    void *context;
} tenure_segment;

/* The next block of a segment. One that is active but not allocated is freed, and other streams may still use it. */
typedef struct tenure_segment_block {
    uint64_t bytes, requested;
    bool is_allocated, is_active;
    void *context;
} tenure_segment_block;

/* A mark that the program made: names and values by turns. */
typedef struct tenure_annotation {
    int device;
    int64_t time_us;
    const char *const *metadata;
    size_t count; /* of pairs */
} tenure_annotation;

/* Whoever looks at a snapshot. */
typedef struct tenure_visitor {
    void *user;
    void (*segment)(void *user, const tenure_segment *segment);
    void (*block)(void *user, const tenure_segment_block *block);
    void (*event)(void *user, const tenure_event *event);
    void (*annotation)(void *user, const tenure_annotation *annotation);
} tenure_visitor;

/* What to record, for how long: see PyTorch's recordHistory. */
typedef struct tenure_recording {
    size_t limit;           /* events to keep, the last ones */
    int contexts;           /* PyTorch's RecordContext */
    const int *skip;        /* actions to leave out */
    size_t skip_count;
} tenure_recording;

/* Where the segments of a private pool come from, if not from Tenure. Called with no lock held: it may allocate and free
 * here. What it allocates goes to no private pool, and must not be handed on as a segment. */
typedef struct tenure_pool_source {
    tenure_object user;
    void *(*allocate)(void *user, size_t bytes, void *stream); /* NULL: there is no memory */
    void (*free)(void *user, void *address, size_t bytes, void *stream);
} tenure_pool_source;

/* The live blocks of a private pool at some time. */
typedef struct tenure_checkpoint tenure_checkpoint;

/* Memory of another process, mapped in this one. */
typedef struct tenure_imported tenure_imported;

/* A setting that can be changed at any time: those of PyTorch's allocator configuration. */
typedef enum tenure_setting {
    TENURE_ROUNDUP_POWER2_DIVISIONS = 0, /* 16 whole numbers */
    TENURE_MAX_SPLIT_BYTES = 1,          /* negative: no limit */
    TENURE_GARBAGE_COLLECTION_THRESHOLD = 2,
    TENURE_EXPANDABLE_SEGMENTS = 3, /* 0 or 1 */
    TENURE_REJECT_ABOVE = 4         /* a part of the device; negative: none */
} tenure_setting;

/* Called with one address after another. */
typedef void (*tenure_addresses)(void *user, void *address);

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
    /* The device of a live block, and its bytes. */
    tenure_status (*block)(void *address, int *device, size_t *bytes);
    /* What was mapped or allocated together around a live block. */
    tenure_status (*extent)(void *address, void **first, size_t *bytes);
    /* Calls `visit` with the context of a live block, as of tenure_event: it lives until `visit` returns. */
    tenure_status (*context)(void *address, void (*visit)(void *user, void *context), void *user);
    /* Records that the program noted something about a live block: this thread's note says what. */
    tenure_status (*annotate_block)(void *address, tenure_object context);

    /* --- Figures and limits --- */

    tenure_status (*statistics)(int device, tenure_statistics *statistics);
    /* Calls `visit` for each private pool that ever held memory, with its reserved bytes: of both kinds of blocks, of
     * small ones, of large ones. The figures outlive their pool. */
    tenure_status (*private_pools)(int device,
                                   void (*visit)(void *user, tenure_pool pool, const tenure_stat reserved[3]),
                                   void *user);
    tenure_status (*reset_peak_statistics)(int device);
    tenure_status (*reset_accumulated_statistics)(int device);
    /* Limits what the allocator may reserve, as PyTorch means it; the option `fraction` is on the whole process. Of
     * device -1: of all, those opened later too. */
    tenure_status (*set_memory_fraction)(int device, double fraction);
    /* Of a device that is not open: what it is opened with. */
    tenure_status (*memory_fraction)(int device, double *fraction);
    /* The longest free range of the memory that is held. */
    tenure_status (*largest_free)(int device, size_t *bytes);
    /* Changes a setting of all devices. `*applies`: whether it means anything for their allocator. */
    tenure_status (*tune)(tenure_setting setting, const double *values, size_t count, bool *applies);

    /* --- Callbacks --- */

    /* Told of every out-of-memory error. */
    tenure_status (*add_out_of_memory_observer)(void (*observer)(void *user, const tenure_out_of_memory *error),
                                                tenure_object user);
    /* Called when memory runs short: frees what it can, and returns whether it may have freed something. */
    tenure_status (*add_free_memory_callback)(bool (*callback)(void *user), tenure_object user);

    /* --- History --- */

    /* Records what happens on all devices, or stops if `recording` is NULL. Forgets what was recorded if `clear`. */
    tenure_status (*record_history)(const tenure_recording *recording, bool clear);
    /* From now on, `note` is kept with every event that this thread causes. */
    void (*set_note)(tenure_object note);
    /* Makes a mark in a device's history: names and values by turns. */
    tenure_status (*annotate)(int device, const char *const *metadata, size_t count);
    /* Told of every event as it happens, with locks held: it must call nothing of this table. */
    tenure_status (*add_tracker)(void (*tracker)(void *user, const tenure_event *event), tenure_object user);
    /* Shows what a device holds: all of it for {0, 0}, or else what a pool has. */
    tenure_status (*snapshot)(int device, tenure_pool pool, bool traces, const tenure_visitor *visitor);

    /* --- Pools --- */

    /* Makes a private pool, with one use; one that is there has one use more. `source` may be NULL. */
    tenure_status (*create_pool)(int device, tenure_pool pool, const tenure_pool_source *source);
    /* Gives up one use. With the last one, its memory goes back as its blocks are freed. */
    tenure_status (*release_pool)(int device, tenure_pool pool);
    tenure_status (*pool_uses)(int device, tenure_pool pool, size_t *uses);
    /* Sends allocations on streams that pass the filter to a pool, made if it is not there. That is one use more.
     * `captures`: whether a stream may be captured until end_pool(). The filter is called on the allocating thread, and
     * must not allocate. */
    tenure_status (*begin_pool)(int device, tenure_pool pool, bool captures, bool (*filter)(void *user, void *stream),
                                tenure_object user);
    /* Says that a capture begins or ends while allocations go to a pool. Nothing if none do. */
    tenure_status (*set_capturing)(int device, tenure_pool pool, bool captures);
    tenure_status (*end_pool)(int device, tenure_pool pool);
    /* Whether requests outside the pool may use its free blocks before there is no memory. */
    tenure_status (*use_pool_on_oom)(int device, tenure_pool pool, bool on);
    tenure_status (*set_no_split)(int device, tenure_pool pool);
    /* Gives the memory that no block lives on back: that of a pool that nobody uses any more; for {0, 0}, all. */
    tenure_status (*release_cached)(int device, tenure_pool pool, tenure_object context);
    tenure_status (*live_blocks)(int device, tenure_pool pool, tenure_addresses visit, void *user);

    /* A checkpoint of a pool, to be given to drop_checkpoint(). */
    tenure_status (*checkpoint)(int device, tenure_pool pool, tenure_checkpoint **checkpoint);
    void (*drop_checkpoint)(tenure_checkpoint *checkpoint);
    /* Sets a pool back: `freed` is told of the blocks that lived before, `allocated` of those that live now. */
    tenure_status (*restore)(int device, const tenure_checkpoint *checkpoint, tenure_addresses freed,
                             tenure_addresses allocated, void *user);

    /* --- Other devices and processes --- */

    /* Lets kernels of device `peer` use the memory of `device`. */
    tenure_status (*enable_peer)(int device, int peer);
    /* How another process finds a live block: `tell` is given a handle for some memory, `*offset` is where in it the block
     * begins. TENURE_NOT_SHAREABLE for memory that only the driver can share. */
    tenure_status (*share)(void *address, size_t *offset, void (*tell)(void *user, const char *handle, size_t bytes),
                           void *user);
    /* Maps the memory that a handle names, or finds it mapped, until close_shared(). */
    tenure_status (*open_shared)(int device, const char *handle, size_t bytes, void **address,
                                 tenure_imported **imported);
    void (*close_shared)(tenure_imported *imported);
} tenure_torch_api;

/* The table; it is there for as long as the process. */
const tenure_torch_api *tenure_torch_table(void);

#ifdef __cplusplus
}
#endif

#endif
