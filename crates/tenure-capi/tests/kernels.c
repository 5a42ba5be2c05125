/* Launches kernels, and calls an operation of its own, on a simulated device. Prints "ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tenure_cuda.h"
#include "tenure_operations.h"

static const tenure_cuda_source sources[] = {{"scale.cu", "extern \"C\" __global__ void scale(float *, float) {}"}};
static const tenure_cuda_program program = {1, sources, 0, NULL};

/* Multiplies the first argument, a tensor, by the second. */
static tenure_status scale(void *context, const tenure_cuda_size *size, const tenure_cuda_argument *arguments,
                           size_t count) {
    float factor;
    if (count != 2 || arguments[1].bytes != sizeof factor)
        return tenure_fail(TENURE_INVALID, "wrong arguments");
    CHECK(size->grid[0] == 2 && size->block[1] == 4 && arguments[0].kind == TENURE_CUDA_WRITE);
    memcpy(&factor, arguments[1].data, sizeof factor);
    ++*(int *)context;
    return tenure_mul_(arguments[0].data, tenure_float(factor));
}

/* An operation of the program's own: its argument times two. */
static tenure_status twice_on_cpu(void *context, const tenure_value *arguments, size_t count, tenure_value *result) {
    (void)context;
    CHECK(count == 1);
    const tenure_value parameters[] = {arguments[0], tenure_float(2)};
    return tenure_call("mul", parameters, 2, result);
}

static tenure_status twice_backward(void *context, const tenure_tensor *const *saved, size_t saved_count,
                                    const tenure_tensor *const *grads, size_t output_count,
                                    tenure_tensor **input_grads, size_t input_count) {
    (void)context;
    /* Saved are the argument and the result. The formula is wrong, to show that it is used. */
    CHECK(saved_count == 2 && output_count == 1 && input_count == 1 && saved[1] != NULL);
    return tenure_mul(grads[0], tenure_float(5), &input_grads[0]);
}

static tenure_tensor *numbers(int device) {
    const float elements[] = {1, 2, 3};
    const int64_t sizes[] = {3};
    tenure_tensor *tensor = NULL;
    CHECK(tenure_tensor_from(elements, sizes, 1, TENURE_FLOAT32, device, &tensor) == TENURE_OK);
    return tensor;
}

static float third(const tenure_tensor *tensor) {
    float elements[3];
    CHECK(tenure_tensor_read(tensor, elements, sizeof elements) == TENURE_OK);
    return elements[2];
}

static void launches(void) {
    int calls = 0;
    const float factor = 3;
    const tenure_cuda_size size = {{2, 1, 1}, {8, 4, 1}, 0};
    tenure_tensor *x = numbers(0), *on_cpu = numbers(TENURE_CPU);
    tenure_cuda_argument arguments[] = {{TENURE_CUDA_WRITE, 0, x}, {TENURE_CUDA_BYTES, sizeof factor, &factor}};

    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "scale: a simulated device runs no kernels"));
    CHECK(tenure_cuda_on_cpu(&program, "scale", scale, &calls) == TENURE_OK);
    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_OK);
    CHECK(third(x) == 9 && calls == 1);

    /* In a thread with an open access, a launch could wait for itself. */
    const tenure_tensor *written[] = {x};
    tenure_access *access = NULL;
    void *stream = NULL;
    CHECK(tenure_access_begin(written, 1, NULL, 0, &access) == TENURE_OK);
    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_INVALID);
    CHECK(tenure_access_stream(access, &stream) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "a simulated device has no stream of CUDA"));
    tenure_access_end(access);
    written[0] = on_cpu;
    CHECK(tenure_access_begin(written, 1, NULL, 0, &access) == TENURE_OK);
    CHECK(tenure_access_stream(access, &stream) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "tensors on the CPU have no stream"));
    tenure_access_end(access);

    arguments[0].data = on_cpu;
    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "argument 1 is a tensor on the CPU"));
    arguments[0].data = NULL;
    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_INVALID);
    arguments[0].kind = 7;
    CHECK(tenure_cuda_launch(&program, "scale", &size, arguments, 2) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "7 is not a tenure_cuda_kind"));
    CHECK(tenure_cuda_launch(NULL, "scale", &size, arguments, 2) == TENURE_INVALID);
    CHECK(tenure_cuda_launch(&program, NULL, &size, arguments, 2) == TENURE_INVALID);
    CHECK(tenure_cuda_launch(&program, "scale", NULL, arguments, 2) == TENURE_INVALID);
    CHECK(tenure_cuda_on_cpu(&program, "scale", NULL, NULL) == TENURE_INVALID);
    tenure_tensor_free(x);
    tenure_tensor_free(on_cpu);
}

static void operations(void) {
    const tenure_operation twice = {"twice", {twice_on_cpu, NULL}, {NULL, NULL}, twice_backward, NULL};
    tenure_tensor *x = numbers(TENURE_CPU), *on_device = numbers(0), *sum = NULL, *grad = NULL;
    CHECK(tenure_tensor_set_requires_grad(x, true) == TENURE_OK);
    tenure_value argument = tenure_of(x), result;
    CHECK(tenure_operation_call(&twice, &argument, 1, &result) == TENURE_OK);
    CHECK(third(result.as.tensor) == 6 && tenure_tensor_requires_grad(result.as.tensor));
    CHECK(tenure_sum(result.as.tensor, NULL, 0, false, &sum) == TENURE_OK);
    CHECK(tenure_tensor_backward(sum) == TENURE_OK && tenure_tensor_grad(x, &grad) == TENURE_OK);
    CHECK(third(grad) == 5 && tenure_grad_enabled());
    argument = tenure_of(on_device);
    CHECK(tenure_operation_call(&twice, &argument, 1, &result) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "twice is not implemented for CUDA devices"));
    tenure_value_free(&result);
    tenure_tensor_free(sum);
    tenure_tensor_free(grad);
    tenure_tensor_free(x);
    tenure_tensor_free(on_device);
}

int main(void) {
    CHECK(tenure_open(0, "driver=sim") == TENURE_OK);
    launches();
    operations();
    puts("ok");
    return 0;
}
