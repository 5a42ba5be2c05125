/* The interface of the shim between PyTorch's autograd and its kernels. It reports the operations to a listener, runs
 * them again, and holds the tensors that autograd saves. It does not depend on Tenure, which gets the table of its
 * functions. Each function may be called from any thread. Those that can fail return NULL, and last_error() says why.
 * No function lets an exception out. A tensor is a TensorImpl; a reference is passed only where the comment says so.
 */
#ifndef TENURE_OPERATIONS_H
#define TENURE_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A storage: its address, its size in bytes, and how often it was written to. */
typedef struct tenure_bytes {
    uintptr_t address;
    size_t bytes;
    uint64_t version;
} tenure_bytes;

/* An operation and its arguments, ready to run again. */
typedef struct tenure_call tenure_call;

/* A listener. It may be called from any thread, until drop(user) is called. Streams are null for the CPU. */
typedef struct tenure_listener {
    void *user;
    void (*drop)(void *user);
    /* Returns whether to report the next operation. */
    bool (*wishes)(void *user, void *stream);
    /* Reports an operation that was launched, with its results. `call` runs it again on storages of the inputs. The
     * listener owns it; NULL if the operation cannot be repeated: the inputs are then the arguments that it wrote to,
     * unless it was in place. */
    void (*operation)(void *user, void *stream, const tenure_bytes *made, size_t made_count, const tenure_bytes *inputs,
                      size_t input_count, tenure_call *call);
} tenure_listener;

typedef struct tenure_recorder tenure_recorder;

/* A tensor that autograd has saved, with or without its bytes. */
typedef struct tenure_saved tenure_saved;

/* A pair of hooks of the tensors that a thread saves. */
typedef struct tenure_hooks tenure_hooks;

/* The facts about a tensor. */
typedef struct tenure_look {
    /* Whether the tensor is no more than its bytes, which are on the recorder's device, come from PyTorch's own
     * allocator, and are none of those that stay. If false, the other fields are not set. */
    bool may_go;
    uint8_t dtype; /* c10::ScalarType */
    tenure_bytes bytes;
} tenure_look;

typedef struct tenure_operations {
    size_t size; /* of this struct */

    /* The error of this thread's last call that failed. */
    const char *(*last_error)(void);

    /* Makes a recorder of the operations on a device: CUDA device `index`, or the CPU if it is negative. Takes over the
     * listener, even if it fails. */
    tenure_recorder *(*new_recorder)(int index, tenure_listener listener);
    void (*drop_recorder)(tenure_recorder *recorder);
    /* Begins a step: the storages at these addresses, such as parameters, stay; no results are known yet. */
    void (*begin)(tenure_recorder *recorder, const uintptr_t *staying, size_t count);
    /* Records this thread's operations from sequence number `from` on, until it is called with NULL. */
    void (*listen)(tenure_recorder *recorder, uint64_t from);
    /* Returns this thread's sequence number, which grows with each operation that is no part of another one. -1 in
     * backward, and in a thread without hooks. */
    int64_t (*sequence)(void);
    /* Returns the sequence number of the operation whose gradient this thread computes. -1 where there is none. */
    int64_t (*node_sequence)(void);

    /* Puts hooks of saved tensors, two Python functions, on this thread's stack. Takes over the references to them. The
     * caller holds the GIL. */
    tenure_hooks *(*enter_hooks)(void *pack, void *unpack);
    /* Takes them off the stack, in the thread that has entered them. */
    void (*leave_hooks)(tenure_hooks *hooks);
    /* Switches them off or on, in the thread that has entered them. */
    void (*set_hooks)(tenure_hooks *hooks, bool on);
    /* Takes them off whether they are on or off, until this is called with false, in the thread that has entered them. */
    void (*suspend_hooks)(tenure_hooks *hooks, bool is_suspended);
    /* Switches the calling thread's hooks off or on, if it has entered only one pair. */
    void (*set_only_hooks)(bool on);
    void (*drop_hooks)(tenure_hooks *hooks);

    /* Runs the operation again. Returns its result number `made`, in the order of the report, as a tensor; `*bytes` is
     * its storage. `storages` are those of the inputs. */
    void *(*run)(const tenure_call *call, size_t made, void *const *storages, tenure_bytes *bytes);
    void (*drop_call)(tenure_call *call);
    void (*drop_tensor)(void *tensor);

    tenure_look (*look)(const tenure_recorder *recorder, const void *tensor);
    /* Returns a name for a tensor in errors. It is valid until the thread's next call of this function. */
    const char *(*name)(const void *tensor);
    tenure_saved *(*save)(const void *tensor, bool is_without_bytes);
    /* Returns PyTorch's error message if the tensor was written to since it was saved, else NULL. It is valid as long as
     * that of last_error(). */
    const char *(*modified)(const tenure_saved *saved);
    /* Returns the tensor as a new reference to a Python object. If it was saved without its bytes, `storage` provides
     * them. The caller holds the GIL. */
    void *(*restore)(const tenure_saved *saved, void *storage);
    void (*drop_saved)(tenure_saved *saved);

    /* Returns this thread's current stream on a device; the index is as in new_recorder(). */
    void *(*stream)(int index);
    /* Allocates a storage of `bytes` bytes from PyTorch's allocator. */
    void *(*new_storage)(int index, size_t bytes);
    void (*drop_storage)(void *storage);
    /* Exchanges the bytes of a tensor's storage and of another storage of the same size: all tensors on the first then
     * have those of the second. Returns whether it could: why not, last_error() says. */
    bool (*exchange)(const void *tensor, void *storage);
} tenure_operations;

/* Returns the table. It lives as long as the process. */
const tenure_operations *tenure_operations_table(void);

#ifdef __cplusplus
}
#endif

#endif
