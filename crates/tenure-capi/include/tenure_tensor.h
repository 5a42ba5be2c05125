/* Tenure's tensors, for C. tenure_operations.h has a function for each operation, and tenure.hpp is the same for C++.
 *
 * A tenure_tensor is a handle, which tenure_tensor_free() frees. A function that makes a tensor gives its caller a new
 * handle; one that takes a tensor leaves the caller's handle to the caller. Several handles may be of one tensor, and
 * several tensors may share memory, as views do. Handles may be used from any thread, and one handle by several at the
 * same time, but for functions that take a `tenure_tensor *` and change it.
 *
 * Functions that can fail return TENURE_OK or the kind of failure; tenure_last_error() gives the message. A call that
 * fails writes no result.
 *
 *     const float numbers[] = {1, 2, 3, 4};
 *     const int64_t sizes[] = {2, 2};
 *     tenure_tensor *x, *y;
 *     if (tenure_tensor_from(numbers, sizes, 2, TENURE_FLOAT32, TENURE_CPU, &x) || tenure_matmul(x, x, &y)) {
 *         fprintf(stderr, "%s\n", tenure_last_error());
 *         exit(1);
 *     }
 *     float product[4];
 *     tenure_tensor_read(y, product, sizeof product);
 *     tenure_tensor_free(y);
 *     tenure_tensor_free(x);
 */
#ifndef TENURE_TENSOR_H
#define TENURE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tenure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tenure_tensor tenure_tensor;
typedef struct tenure_generator tenure_generator; /* random numbers */
typedef struct tenure_access tenure_access;       /* access to the bytes of tensors */

typedef enum tenure_dtype {
    TENURE_BOOL = 0,
    TENURE_UINT8 = 1,
    TENURE_INT8 = 2,
    TENURE_INT16 = 3,
    TENURE_INT32 = 4,
    TENURE_INT64 = 5,
    TENURE_FLOAT16 = 6,
    TENURE_BFLOAT16 = 7,
    TENURE_FLOAT32 = 8,
    TENURE_FLOAT64 = 9,
    TENURE_UINT16 = 10,
    TENURE_UINT32 = 11,
    TENURE_UINT64 = 12
} tenure_dtype;

/* The number of the CPU among devices. A CUDA device has its own number. */
#define TENURE_CPU (-1)

typedef enum tenure_type {
    TENURE_TYPE_DEFAULT = 0,   /* the parameter's default */
    TENURE_TYPE_NONE = 1,
    TENURE_TYPE_BOOL = 2,
    TENURE_TYPE_INT = 3,
    TENURE_TYPE_FLOAT = 4,
    TENURE_TYPE_TEXT = 5,
    TENURE_TYPE_DTYPE = 6,
    TENURE_TYPE_DEVICE = 7,
    TENURE_TYPE_TENSOR = 8,
    TENURE_TYPE_INTS = 9,      /* `count` integers */
    TENURE_TYPE_TENSORS = 10,  /* `count` tensors */
    TENURE_TYPE_GENERATOR = 11,
    TENURE_TYPE_TUPLE = 12     /* `count` values: only in results of extensions */
} tenure_type;

/* An argument or a result. `{0}` is a parameter's default. An argument refers to what the caller owns, and to nothing
 * after the call. A result owns what it refers to, until tenure_value_free(). */
typedef struct tenure_value {
    int32_t type; /* a tenure_type */
    size_t count;
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *text;
        int dtype;
        int device;
        const tenure_tensor *tensor;
        const int64_t *integers;
        const tenure_tensor *const *tensors;
        const tenure_generator *generator;
        const struct tenure_value *values;
    } as;
} tenure_value;

/* Makes a tensor with a copy of the elements at `data`, whose last dimension is dense. An element of TENURE_BOOL is a
 * byte, 0 or 1. */
tenure_status tenure_tensor_from(const void *data, const int64_t *sizes, size_t rank, int dtype, int device,
                                 tenure_tensor **tensor);

/* Copies all elements to `data`, with the last dimension dense. `bytes` is the number of elements times the size of
 * one. Waits for work on the tensor's device. */
tenure_status tenure_tensor_read(const tenure_tensor *tensor, void *data, size_t bytes);

/* Makes another handle of the same tensor. */
tenure_status tenure_tensor_share(const tenure_tensor *tensor, tenure_tensor **other);

/* Frees a handle. The tensor's memory is freed with the last handle of the tensors that share it. NULL is ignored. */
void tenure_tensor_free(tenure_tensor *tensor);

/* These return what is known of a tensor, which must not be NULL. The numbers of sizes and strides, in elements, are
 * its rank; they are valid until the handle is freed or changed. */
size_t tenure_tensor_rank(const tenure_tensor *tensor);
const int64_t *tenure_tensor_sizes(const tenure_tensor *tensor);
const int64_t *tenure_tensor_strides(const tenure_tensor *tensor);
size_t tenure_tensor_numel(const tenure_tensor *tensor);
int tenure_tensor_dtype(const tenure_tensor *tensor); /* a tenure_dtype */
int tenure_tensor_device(const tenure_tensor *tensor);
bool tenure_tensor_is_contiguous(const tenure_tensor *tensor);

/* Makes a generator of random numbers, for all devices. tenure_generator_free() frees it. */
tenure_generator *tenure_generator_new(uint64_t seed);
void tenure_generator_free(tenure_generator *generator);

/* Sets the seed of the default generators of all devices. */
void tenure_manual_seed(uint64_t seed);

/* Calls an operation by its name in docs/reference/operations.md, with arguments in the order of its parameters.
 * Arguments that are left out at the end have their defaults. Of several operations of one name, the first is called
 * that takes the arguments. `*result` is of type NONE where the operation writes to its first argument, else BOOL,
 * TENSOR or TENSORS. NULL frees the result. */
tenure_status tenure_call(const char *operation, const tenure_value *arguments, size_t count, tenure_value *result);

/* Moves the handles of a result of type TENSORS to `places`, one place for each tensor. The result is freed. */
void tenure_take_tensors(tenure_value *value, tenure_tensor **const *places);

/* These make results that own what they refer to, of a copy of a text, of handles which they take over, and of values
 * which they take over. */
tenure_value tenure_owned_text(const char *text);
tenure_value tenure_owned_tensors(tenure_tensor *const *tensors, size_t count);
tenure_value tenure_owned_tuple(const tenure_value *values, size_t count);

/* Frees what a result refers to. */
void tenure_value_free(tenure_value *value);

/* Begins an access to the bytes of tensors of one device: no other thread writes to those that are read, and none reads
 * or writes those that are written, until tenure_access_end(), which the same thread calls. Until then, another access,
 * tenure_call(), tenure_tensor_read() and tenure_tensor_backward() fail in this thread: they could wait for it. */
tenure_status tenure_access_begin(const tenure_tensor *const *written, size_t written_count,
                                  const tenure_tensor *const *read, size_t read_count, tenure_access **access);

/* Writes the address of the first element of a tensor of the access. It is valid until the access ends. */
tenure_status tenure_access_data(tenure_access *access, const tenure_tensor *tensor, void **data);

/* Ends an access. NULL is ignored. */
void tenure_access_end(tenure_access *access);

/* Gradients. The gradient of a tensor without one is NULL. */
bool tenure_tensor_requires_grad(const tenure_tensor *tensor);
tenure_status tenure_tensor_set_requires_grad(tenure_tensor *tensor, bool requires_grad);
tenure_status tenure_tensor_grad(const tenure_tensor *tensor, tenure_tensor **grad);
tenure_status tenure_tensor_backward(const tenure_tensor *tensor);
tenure_status tenure_tensor_detach(const tenure_tensor *tensor, tenure_tensor **detached);

/* Switches this thread's recording of gradients on or off, until tenure_grad_mode_pop(), or until the extension's
 * function or the formula returns. */
bool tenure_grad_enabled(void);
void tenure_grad_mode_push(bool enabled);
void tenure_grad_mode_pop(void);

/* Computes the gradients of an operation's inputs. `saved` are the tensors that were saved, `grads` the gradients of
 * the outputs: NULL where nothing depends on an output. Writes a new handle to input_grads[i], or leaves it NULL for no
 * gradient. It may be called several times, by any thread, and by several at the same time. To fail, it returns
 * what tenure_fail() or another function returned. */
typedef tenure_status (*tenure_formula)(void *context, const tenure_tensor *const *saved, size_t saved_count,
                                        const tenure_tensor *const *grads, size_t output_count,
                                        tenure_tensor **input_grads, size_t input_count);

/* Makes `outputs` the results of an operation on `inputs` with a formula for gradients. The outputs are fresh: computed
 * with gradients switched off (tenure_grad_mode_push(false)), and none is an input. `saved` may be inputs, outputs or other tensors.
 * `free_context` frees `context` when no backward pass can need it any more, also if this call fails; NULL frees
 * nothing. */
tenure_status tenure_attach(const char *name, const tenure_tensor *const *outputs, size_t output_count,
                            const tenure_tensor *const *inputs, size_t input_count,
                            const tenure_tensor *const *saved, size_t saved_count, tenure_formula formula,
                            void *context, void (*free_context)(void *));

/* Computes an operation's result from its arguments, as a function of an extension does. */
typedef struct tenure_implementation {
    tenure_status (*call)(void *context, const tenure_value *arguments, size_t count, tenure_value *result);
    void *context;
} tenure_implementation;

/* An operation of the program's own. `call` is NULL for a kind of device that it has no implementation for, and `formula`
 * is NULL if it has none: then gradients are those of the operations within. Contexts live as long as the process. */
typedef struct tenure_operation {
    const char *name;
    tenure_implementation cpu;
    tenure_implementation cuda;
    tenure_formula formula;
    void *formula_context;
} tenure_operation;

/* Calls an operation of the program's own: the implementation for the device of the first tensor among the arguments, or
 * that for the CPU. With a formula, the implementation runs with gradients switched off, and `saved` are the tensors
 * among the arguments, then those of the result; its inputs are the tensors among the arguments. */
tenure_status tenure_operation_call(const tenure_operation *operation, const tenure_value *arguments, size_t count,
                                    tenure_value *result);

/* Makes `message` this thread's last error. Returns `status`, which is TENURE_INVALID or TENURE_WRONG_TYPE. */
tenure_status tenure_fail(tenure_status status, const char *message);

/* The values of arguments. */
static inline tenure_value tenure_none(void) {
    tenure_value value = {TENURE_TYPE_NONE, 0, {0}};
    return value;
}

static inline tenure_value tenure_bool(bool boolean) {
    tenure_value value = {TENURE_TYPE_BOOL, 0, {0}};
    value.as.boolean = boolean;
    return value;
}

static inline tenure_value tenure_int(int64_t integer) {
    tenure_value value = {TENURE_TYPE_INT, 0, {0}};
    value.as.integer = integer;
    return value;
}

static inline tenure_value tenure_float(double number) {
    tenure_value value = {TENURE_TYPE_FLOAT, 0, {0}};
    value.as.number = number;
    return value;
}

/* NULL is none. */
static inline tenure_value tenure_text(const char *text) {
    tenure_value value = {text ? TENURE_TYPE_TEXT : TENURE_TYPE_NONE, 0, {0}};
    value.as.text = text;
    return value;
}

static inline tenure_value tenure_dtype_value(int dtype) {
    tenure_value value = {TENURE_TYPE_DTYPE, 0, {0}};
    value.as.dtype = dtype;
    return value;
}

static inline tenure_value tenure_device_value(int device) {
    tenure_value value = {TENURE_TYPE_DEVICE, 0, {0}};
    value.as.device = device;
    return value;
}

/* NULL is none. */
static inline tenure_value tenure_of(const tenure_tensor *tensor) {
    tenure_value value = {tensor ? TENURE_TYPE_TENSOR : TENURE_TYPE_NONE, 0, {0}};
    value.as.tensor = tensor;
    return value;
}

static inline tenure_value tenure_ints(const int64_t *integers, size_t count) {
    tenure_value value = {TENURE_TYPE_INTS, count, {0}};
    value.as.integers = integers;
    return value;
}

static inline tenure_value tenure_tensors(const tenure_tensor *const *tensors, size_t count) {
    tenure_value value = {TENURE_TYPE_TENSORS, count, {0}};
    value.as.tensors = tensors;
    return value;
}

/* NULL is the device's default generator. */
static inline tenure_value tenure_generator_value(const tenure_generator *generator) {
    tenure_value value = {generator ? TENURE_TYPE_GENERATOR : TENURE_TYPE_NONE, 0, {0}};
    value.as.generator = generator;
    return value;
}

/* These call an operation with one result of a type, and move it to its place: tenure_operations.h is made of them. */
static inline tenure_status tenure_call_tensor(const char *operation, const tenure_value *arguments, size_t count,
                                               tenure_tensor **result) {
    tenure_value value = {TENURE_TYPE_NONE, 0, {0}};
    tenure_status status = tenure_call(operation, arguments, count, &value);
    if (status == TENURE_OK)
        *result = (tenure_tensor *)value.as.tensor;
    return status;
}

static inline tenure_status tenure_call_tensors(const char *operation, const tenure_value *arguments, size_t count,
                                                tenure_tensor **const *results) {
    tenure_value value = {TENURE_TYPE_NONE, 0, {0}};
    tenure_status status = tenure_call(operation, arguments, count, &value);
    if (status == TENURE_OK)
        tenure_take_tensors(&value, results);
    return status;
}

static inline tenure_status tenure_call_bool(const char *operation, const tenure_value *arguments, size_t count,
                                             bool *result) {
    tenure_value value = {TENURE_TYPE_NONE, 0, {0}};
    tenure_status status = tenure_call(operation, arguments, count, &value);
    if (status == TENURE_OK)
        *result = value.as.boolean;
    return status;
}

#ifdef __cplusplus
}
#endif

#endif
