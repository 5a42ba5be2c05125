/* The functions of Tenure that PyTorch's allocator calls. The shim under PyTorch is given the address of this one
 * table, and so links to nothing of Tenure's.
 *
 * A device is opened at its first use, with the options of configure(). Settings for all devices (history, observers,
 * callbacks, rounding) are given once, before or after devices are opened. Every function may be called from any
 * thread. Functions that return a status follow tenure.h: last_error() gives the message, and a call that fails changes
 * nothing. No function lets a Rust panic out, and no callback may let an exception out.
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
#define TENURE_TORCH_ABI 5

/* A private pool: PyTorch's MempoolId_t. */
typedef struct tenure_pool {
    uint64_t first, second;
} tenure_pool;

/* An object that the caller hands over. drop(pointer) is called once, from any thread, when the object is no longer
 * needed, even if the call failed. A NULL pointer is no object, and is not dropped. */
typedef struct tenure_object {
    void *pointer;
    void (*drop)(void *pointer);
} tenure_object;

/* A counter over time, in bytes or a number of things. */
typedef struct tenure_stat {
    int64_t current, peak, allocated, freed;
} tenure_stat;

/* PyTorch's DeviceStats. The elements of the arrays: both pools, the small pool, the large pool. */
typedef struct tenure_statistics {
    tenure_stat allocation[3], segment[3], active[3], inactive_split[3];
    tenure_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3], inactive_split_bytes[3], requested_bytes[3];
    tenure_stat oversize_allocations, oversize_segments;
    int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    int64_t max_split_size; /* -1: no limit */
    int64_t num_oom_rejections; /* because of TENURE_REJECT_ABOVE, and not in num_ooms */
} tenure_statistics;

/* The argument of an observer of out-of-memory errors, in bytes. */
typedef struct tenure_out_of_memory {
    int device;
    uint64_t requested, allowed, allocated, total, free;
    bool rejected; /* because of TENURE_REJECT_ABOVE */
} tenure_out_of_memory;

/* An event: PyTorch's TraceEntry. `action` numbers PyTorch's actions in their order. `context` and `note` are the
 * pointers of objects that were handed over, or NULL; the objects live at least until the function that receives the
 * event returns. */
typedef struct tenure_event {
    int action, device;
    uint64_t address, bytes;
    void *stream;
    tenure_pool pool;
    int64_t time_us; /* since 1970 */
    void *context, *note;
} tenure_event;

/* A segment of a snapshot. Its blocks follow. */
typedef struct tenure_segment {
    int device;
    bool is_large, is_expandable;
    uint64_t made; /* its number in the order in which segments were made; 0 if it was not made as one segment */
    uint64_t address;
    void *stream;
    tenure_pool pool;
    void *context;
} tenure_segment;

/* The next block of a segment. A block that is active but not allocated was freed; other streams may still use it. */
typedef struct tenure_segment_block {
    uint64_t bytes, requested;
    bool is_allocated, is_active;
    void *context;
} tenure_segment_block;

/* A mark that the program made: alternating names and values. */
typedef struct tenure_annotation {
    int device;
    int64_t time_us;
    const char *const *metadata;
    size_t count; /* the number of pairs */
} tenure_annotation;

/* The callbacks that are shown a snapshot. */
typedef struct tenure_visitor {
    void *user;
    void (*segment)(void *user, const tenure_segment *segment);
    void (*block)(void *user, const tenure_segment_block *block);
    void (*event)(void *user, const tenure_event *event);
    void (*annotation)(void *user, const tenure_annotation *annotation);
} tenure_visitor;

/* The settings of a recording: see PyTorch's recordHistory. */
typedef struct tenure_recording {
    size_t limit;           /* how many events to keep: the last ones */
    int contexts;           /* PyTorch's RecordContext */
    const int *skip;        /* actions to leave out */
    size_t skip_count;
} tenure_recording;

/* The source of a private pool's segments, if it is not Tenure. It is called with no lock held, and may allocate and
 * free through this table. Memory that it allocates so belongs to no private pool, and must not be returned as a
 * segment. */
typedef struct tenure_pool_source {
    tenure_object user;
    void *(*allocate)(void *user, size_t bytes, void *stream); /* NULL if there is no memory */
    void (*free)(void *user, void *address, size_t bytes, void *stream);
} tenure_pool_source;

/* The number of calls of one kind, and the microseconds that they took. */
typedef struct tenure_call_times {
    int64_t count, total_us, shortest_us, longest_us;
} tenure_call_times;

/* The figures of pinned memory. PyTorch's HostStats. */
typedef struct tenure_pinned_statistics {
    tenure_stat blocks, used_bytes;   /* live blocks, and freed ones that streams still use */
    tenure_stat chunks, pinned_bytes; /* what is pinned, in use or not */
    tenure_call_times pinning, unpinning;
    int64_t chunks_by_size[64]; /* how many were pinned, by the power of two that their bytes are rounded up to */
} tenure_pinned_statistics;

/* The live blocks of a private pool at one time. */
typedef struct tenure_checkpoint tenure_checkpoint;

/* Another process's memory, mapped in this process. */
typedef struct tenure_imported tenure_imported;

/* A setting that can be changed at any time: one of PyTorch's allocator configuration. */
typedef enum tenure_setting {
    TENURE_ROUNDUP_POWER2_DIVISIONS = 0, /* 16 whole numbers */
    TENURE_MAX_SPLIT_BYTES = 1,          /* negative: no limit */
    TENURE_GARBAGE_COLLECTION_THRESHOLD = 2,
    TENURE_EXPANDABLE_SEGMENTS = 3, /* 0 or 1 */
    TENURE_REJECT_ABOVE = 4         /* a fraction of the device; negative: none */
} tenure_setting;

/* Called with each address in turn. */
typedef void (*tenure_addresses)(void *user, void *address);

typedef struct tenure_torch_api {
    size_t size;  /* of this struct: a shim that knows a larger one must refuse it */
    uint32_t abi; /* TENURE_TORCH_ABI */

    const char *(*last_error)(void);

    /* --- Devices --- */

    /* Sets the options for opening devices, as of tenure_open(). TENURE_ALREADY_OPEN once a device is open. */
    tenure_status (*configure)(const char *options);
    /* Returns whether a device was used yet. Devices without a use have no memory, no statistics and no snapshot. */
    bool (*is_open)(int device);

    /* --- Blocks --- */

    /* Allocates a block of at least `bytes` bytes (more than 0) for `stream`, with this thread's tag and key. `context`
     * is kept with the block, and with the events that it causes. */
    tenure_status (*allocate)(int device, size_t bytes, void *stream, tenure_object context, void **address);
    /* Ends the use of a block, whichever device it is on. `context` is kept with the events that this causes. */
    tenure_status (*free)(void *address, tenure_object context);
    tenure_status (*record_stream)(void *address, void *stream);
    /* Gives the device of a live block, and its bytes. */
    tenure_status (*block)(void *address, int *device, size_t *bytes);
    /* Gives the range that was mapped or allocated together around a live block. */
    tenure_status (*extent)(void *address, void **first, size_t *bytes);
    /* Calls `visit` with the context of a live block, as in tenure_event: it lives until `visit` returns. */
    tenure_status (*context)(void *address, void (*visit)(void *user, void *context), void *user);
    /* Records that the program annotated a live block with this thread's note. */
    tenure_status (*annotate_block)(void *address, tenure_object context);

    /* --- Figures and limits --- */

    tenure_status (*statistics)(int device, tenure_statistics *statistics);
    /* Calls `visit` for each private pool that ever held memory, with its reserved bytes: of all blocks, of small ones,
     * of large ones. The counters outlive their pool. */
    tenure_status (*private_pools)(int device,
                                   void (*visit)(void *user, tenure_pool pool, const tenure_stat reserved[3]),
                                   void *user);
    tenure_status (*reset_peak_statistics)(int device);
    tenure_status (*reset_accumulated_statistics)(int device);
    /* Limits the memory that the allocator may reserve, as PyTorch defines it; the option `fraction` limits the whole
     * process. Device -1 stands for all devices, also for those opened later. */
    tenure_status (*set_memory_fraction)(int device, double fraction);
    /* Gives the fraction of a device. For a device that is not open: the one that it is opened with. */
    tenure_status (*memory_fraction)(int device, double *fraction);
    /* Gives the bytes of the longest free range in the reserved memory. */
    tenure_status (*largest_free)(int device, size_t *bytes);
    /* Changes a setting of all devices. `*applies` tells whether it has an effect on their allocator. */
    tenure_status (*tune)(tenure_setting setting, const double *values, size_t count, bool *applies);

    /* --- Callbacks --- */

    /* Adds a function that is called at every out-of-memory error. */
    tenure_status (*add_out_of_memory_observer)(void (*observer)(void *user, const tenure_out_of_memory *error),
                                                tenure_object user);
    /* Adds a function that is called when memory runs short: it frees what it can, and returns whether it may have
     * freed something. */
    tenure_status (*add_free_memory_callback)(bool (*callback)(void *user), tenure_object user);

    /* --- History --- */

    /* Records the events of all devices, or stops if `recording` is NULL. If `clear`, forgets the events so far. */
    tenure_status (*record_history)(const tenure_recording *recording, bool clear);
    /* Keeps `note` from now on with every event that this thread causes. */
    void (*set_note)(tenure_object note);
    /* Makes a mark in a device's history: alternating names and values. */
    tenure_status (*annotate)(int device, const char *const *metadata, size_t count);
    /* Adds a function that is called at every event, with locks held: it must call nothing of this table. */
    tenure_status (*add_tracker)(void (*tracker)(void *user, const tenure_event *event), tenure_object user);
    /* Shows the memory of a device: all of it for {0, 0}, else that of a pool. */
    tenure_status (*snapshot)(int device, tenure_pool pool, bool traces, const tenure_visitor *visitor);

    /* --- Pools --- */

    /* Makes a private pool with one use, or adds a use to an existing one. `source` may be NULL. */
    tenure_status (*create_pool)(int device, tenure_pool pool, const tenure_pool_source *source);
    /* Ends one use. After the last one, the pool's memory is given back as its blocks are freed. */
    tenure_status (*release_pool)(int device, tenure_pool pool);
    tenure_status (*pool_uses)(int device, tenure_pool pool, size_t *uses);
    /* Sends allocations on streams that pass the filter to a pool, which is made if it does not exist. This adds a use.
     * `captures` tells whether a stream may be captured until end_pool(). The filter is called on the allocating
     * thread, and must not allocate. */
    tenure_status (*begin_pool)(int device, tenure_pool pool, bool captures, bool (*filter)(void *user, void *stream),
                                tenure_object user);
    /* Tells that a capture begins or ends while allocations go to a pool. Does nothing if none go to it. */
    tenure_status (*set_capturing)(int device, tenure_pool pool, bool captures);
    tenure_status (*end_pool)(int device, tenure_pool pool);
    /* Sets whether requests outside the pool may use its free blocks before they fail for want of memory. */
    tenure_status (*use_pool_on_oom)(int device, tenure_pool pool, bool on);
    tenure_status (*set_no_split)(int device, tenure_pool pool);
    /* Gives memory without live blocks back: that of a pool without uses; for {0, 0}, all. */
    tenure_status (*release_cached)(int device, tenure_pool pool, tenure_object context);
    tenure_status (*live_blocks)(int device, tenure_pool pool, tenure_addresses visit, void *user);

    /* Makes a checkpoint of a pool, which drop_checkpoint() frees. */
    tenure_status (*checkpoint)(int device, tenure_pool pool, tenure_checkpoint **checkpoint);
    void (*drop_checkpoint)(tenure_checkpoint *checkpoint);
    /* Restores a pool. `freed` is called with the blocks that lived before, `allocated` with those that live now. */
    tenure_status (*restore)(int device, const tenure_checkpoint *checkpoint, tenure_addresses freed,
                             tenure_addresses allocated, void *user);

    /* --- Other devices and processes --- */

    /* Lets kernels of device `peer` use the memory of `device`. */
    tenure_status (*enable_peer)(int device, int peer);
    /* Describes a live block for another process: `tell` is called with a handle of the memory, and `*offset` is the
     * block's offset in it. TENURE_NOT_SHAREABLE for memory that only the driver can share. */
    tenure_status (*share)(void *address, size_t *offset, void (*tell)(void *user, const char *handle, size_t bytes),
                           void *user);
    /* Maps the memory that a handle names, unless it is mapped already, until close_shared(). */
    tenure_status (*open_shared)(int device, const char *handle, size_t bytes, void **address,
                                 tenure_imported **imported);
    void (*close_shared)(tenure_imported *imported);

    /* --- Pinned host memory, one allocator for all devices --- */

    /* Allocates bytes for work on a stream of a device, which matter only if pinned_depends_on_stream(). */
    tenure_status (*allocate_pinned)(int device, size_t bytes, void *stream, tenure_object context, void **address);
    /* Returns whether the next allocation is the first, which chooses a device, or a pool is begun. */
    bool (*pinned_depends_on_stream)(void);
    tenure_status (*free_pinned)(void *address, tenure_object context);
    /* Keeps a block, once it is freed, until the stream has done its present work. Returns false if no live block begins
     * at the address. */
    bool (*record_stream_pinned)(void *address, int device, void *stream);
    /* Gives memory without live blocks back. Waits for the streams that use freed blocks. */
    tenure_status (*release_cached_pinned)(void);
    void (*pinned_statistics)(tenure_pinned_statistics *statistics);
    void (*reset_peak_pinned_statistics)(void);
    void (*reset_accumulated_pinned_statistics)(void);
    /* Begins to record events, or ends it without a recording. `device` is the program's current one. */
    tenure_status (*record_pinned_history)(int device, const tenure_recording *recording, bool clear);
    /* Shows every block, in use or not, as a segment with one block; and the events, without a device. */
    void (*pinned_snapshot)(bool traces, const tenure_visitor *visitor);
    /* Sends allocations for streams that pass the filter to a pool, which is made if it does not exist. This adds a use.
     * What these streams use is kept until the pool has no use. The filter is called with locks held. */
    tenure_status (*begin_pinned_pool)(int device, tenure_pool pool, bool (*filter)(void *user, int device, void *stream),
                                       tenure_object user);
    void (*end_pinned_pool)(tenure_pool pool);
    void (*release_pinned_pool)(tenure_pool pool);
} tenure_torch_api;

/* Returns the table, which lives as long as the process. */
const tenure_torch_api *tenure_torch_table(void);

#ifdef __cplusplus
}
#endif

#endif
