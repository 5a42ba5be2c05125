/* What PyTorch's operations make, and how it is made again: told to whoever listens, by a shim between PyTorch's autograd
 * and its kernels. And what autograd saves. It knows nothing of Tenure, which is given the table of its functions. Each of
 * them may be called from any thread; those that can fail return NULL, and last_error() says why. None lets an exception
 * out. A tensor is a TensorImpl, of which a reference is given only where it says so.
 */
#ifndef TENURE_OPERATIONS_H
#define TENURE_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where bytes are, how many they are, and how often they were written to. */
typedef struct tenure_bytes {
    uintptr_t address;
    size_t bytes;
    uint64_t version;
} tenure_bytes;

/* An operation, and what it was given. */
typedef struct tenure_call tenure_call;

/* Who listens; it may be called from any thread, and until drop(user) is. Streams are null for the CPU. */
typedef struct tenure_listener {
    void *user;
    void (*drop)(void *user);
    /* Whether to be told of the operation that comes next. */
    bool (*wishes)(void *user, void *stream);
    /* An operation was asked for, which has made something. `call` makes it again, of storages of the inputs, and is handed
     * over; NULL if nobody knows how. */
    void (*operation)(void *user, void *stream, const tenure_bytes *made, size_t made_count, const tenure_bytes *inputs,
                      size_t input_count, tenure_call *call);
} tenure_listener;

typedef struct tenure_recorder tenure_recorder;

/* A tensor that autograd has saved: as it is, or without its bytes. */
typedef struct tenure_saved tenure_saved;

/* What is known of a tensor. */
typedef struct tenure_look {
    /* Whether its bytes are all that it seems to be: on the recorder's device, by PyTorch's own allocator, and none of those
     * that stay. If not, nothing else is known. */
    bool may_go;
    uint8_t dtype; /* c10::ScalarType */
    tenure_bytes bytes;
} tenure_look;

typedef struct tenure_operations {
    size_t size; /* of this struct */

    /* What went wrong in the last call of this thread that failed. */
    const char *(*last_error)(void);

    /* Listens to what is made on a device, which is CUDA's number `index`, or the CPU if that is negative. Takes the
     * listener over, also if it fails. */
    tenure_recorder *(*new_recorder)(int index, tenure_listener listener);
    void (*drop_recorder)(tenure_recorder *recorder);
    /* From now on these addresses stay as they are, such as parameters', and nothing was made yet. */
    void (*begin)(tenure_recorder *recorder, const uintptr_t *staying, size_t count);
    /* This thread's operations are listened to, until it says otherwise with NULL. */
    void (*listen)(tenure_recorder *recorder);

    /* The result number `made` of those that were told, in a tensor; `*bytes` is where. `storages` are those of the inputs. */
    void *(*run)(const tenure_call *call, size_t made, void *const *storages, tenure_bytes *bytes);
    void (*drop_call)(tenure_call *call);
    void (*drop_tensor)(void *tensor);

    tenure_look (*look)(const tenure_recorder *recorder, const void *tensor);
    /* What to call a tensor in an error: valid until the thread's next call of this. */
    const char *(*name)(const void *tensor);
    tenure_saved *(*save)(const void *tensor, bool is_without_bytes);
    /* PyTorch's own words for what was written to since it was saved; NULL if it was not. As last_error(). */
    const char *(*modified)(const tenure_saved *saved);
    /* The tensor, as a new reference to Python's object: on this storage, if it was saved without its bytes. With Python's
     * lock. */
    void *(*restore)(const tenure_saved *saved, void *storage);
    void (*drop_saved)(tenure_saved *saved);

    /* Where the thread computes on a device; the index as above. */
    void *(*stream)(int index);
    /* A storage of so many bytes, of PyTorch's allocator. */
    void *(*new_storage)(int index, size_t bytes);
    void (*drop_storage)(void *storage);
} tenure_operations;

/* The table; it is there for as long as the process. */
const tenure_operations *tenure_operations_table(void);

#ifdef __cplusplus
}
#endif

#endif
