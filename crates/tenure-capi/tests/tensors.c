/* Checks tensors in C. tests/interface.rs runs this program. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tenure_operations.h"

static tenure_tensor *matrix(const float *numbers, int64_t rows, int64_t columns) {
    const int64_t sizes[] = {rows, columns};
    tenure_tensor *made;
    CHECK(tenure_tensor_from(numbers, sizes, 2, TENURE_FLOAT32, TENURE_CPU, &made) == TENURE_OK);
    return made;
}

static int has(const tenure_tensor *tensor, size_t count, const float *expected) {
    float numbers[64];
    CHECK(tenure_tensor_numel(tensor) == count && count <= 64);
    CHECK(tenure_tensor_read(tensor, numbers, count * sizeof(float)) == TENURE_OK);
    return memcmp(numbers, expected, count * sizeof(float)) == 0;
}

static void check_operations(void) {
    tenure_tensor *x = matrix((float[]){1, -2, 3, 4}, 2, 2), *y, *values, *indices;
    CHECK(tenure_tensor_rank(x) == 2 && tenure_tensor_sizes(x)[1] == 2 && tenure_tensor_strides(x)[0] == 2);
    CHECK(tenure_tensor_dtype(x) == TENURE_FLOAT32 && tenure_tensor_device(x) == TENURE_CPU);
    CHECK(tenure_matmul(x, x, &y) == TENURE_OK);
    CHECK(has(y, 4, (float[]){-5, -10, 15, 10}));
    tenure_tensor_free(y);

    /* A number in place of a tensor; a list of integers; in place; several results. */
    CHECK(tenure_add(x, tenure_float(1), &y) == TENURE_OK);
    CHECK(has(y, 4, (float[]){2, -1, 4, 5}));
    CHECK(tenure_mul_(y, tenure_of(x)) == TENURE_OK);
    CHECK(has(y, 4, (float[]){2, 2, 12, 20}));
    tenure_tensor_free(y);
    CHECK(tenure_sum(x, (int64_t[]){1}, 1, true, &y) == TENURE_OK);
    CHECK(has(y, 2, (float[]){-1, 7}) && tenure_tensor_rank(y) == 2);
    tenure_tensor_free(y);
    CHECK(tenure_sort(x, 1, true, false, &values, &indices) == TENURE_OK);
    CHECK(has(values, 4, (float[]){1, -2, 4, 3}) && tenure_tensor_dtype(indices) == TENURE_INT64);
    tenure_tensor_free(indices);

    /* By name, with defaults, and a list as the result. */
    tenure_value result, arguments[3] = {tenure_of(x), tenure_int(1)};
    CHECK(tenure_call("unbind", arguments, 2, &result) == TENURE_OK);
    CHECK(result.type == TENURE_TYPE_TENSORS && result.count == 2 && has(result.as.tensors[1], 2, (float[]){-2, 4}));
    tenure_value_free(&result);
    CHECK(result.type == TENURE_TYPE_NONE);
    tenure_value_free(&result);
    bool is_equal = false;
    CHECK(tenure_equal(x, values, &is_equal) == TENURE_OK && !is_equal);
    const tenure_tensor *both[] = {x, values};
    CHECK(tenure_cat(both, 2, 0, &y) == TENURE_OK && tenure_tensor_sizes(y)[0] == 4);
    tenure_tensor_free(y);
    tenure_tensor_free(values);
    tenure_tensor_free(x);
}

static void check_failures(void) {
    tenure_tensor *x = matrix((float[]){1, 2, 3, 4, 5, 6}, 2, 3), *y = NULL;
    CHECK(tenure_matmul(x, x, &y) == TENURE_INVALID && y == NULL && strstr(tenure_last_error(), "matmul"));
    CHECK(tenure_matmul(x, NULL, &y) == TENURE_WRONG_TYPE && strstr(tenure_last_error(), "none"));
    CHECK(tenure_call("no_such", NULL, 0, NULL) == TENURE_INVALID && strstr(tenure_last_error(), "no_such"));
    const tenure_value text[] = {tenure_of(x), tenure_text("two")};
    CHECK(tenure_call("add", text, 2, NULL) == TENURE_WRONG_TYPE);
    CHECK(strstr(tenure_last_error(), "a tensor, a text") && strstr(tenure_last_error(), "other: a tensor or a number"));
    CHECK(tenure_reshape(x, (int64_t[]){4, -7}, 2, &y) == TENURE_INVALID && y == NULL);
    const int64_t sizes[] = {2, -1};
    CHECK(tenure_tensor_from(NULL, sizes, 2, TENURE_FLOAT32, TENURE_CPU, &y) == TENURE_INVALID);
    CHECK(tenure_tensor_from(sizes, sizes, 1, 17, TENURE_CPU, &y) == TENURE_INVALID);
    CHECK(tenure_tensor_from(sizes, (int64_t[]){1}, 1, TENURE_INT64, -5, &y) == TENURE_INVALID);
    char few[4];
    CHECK(tenure_tensor_read(x, few, sizeof few) == TENURE_INVALID && strstr(tenure_last_error(), "24 bytes"));
    tenure_tensor_free(x);
    tenure_tensor_free(NULL);
}

static void check_access(void) {
    tenure_tensor *x = matrix((float[]){1, 2, 3, 4}, 2, 2), *y = matrix((float[]){0, 0, 0, 0}, 2, 2);
    const tenure_tensor *written[] = {y}, *read[] = {x};
    tenure_access *access;
    CHECK(tenure_access_begin(written, 1, read, 1, &access) == TENURE_OK);
    void *from, *to, *none = NULL;
    CHECK(tenure_access_data(access, x, &from) == TENURE_OK && tenure_access_data(access, y, &to) == TENURE_OK);
    tenure_tensor *other = matrix((float[]){0}, 1, 1);
    CHECK(tenure_access_data(access, other, &none) == TENURE_INVALID && none == NULL);
    tenure_access *second = NULL;
    CHECK(tenure_access_begin(NULL, 0, read, 1, &second) == TENURE_INVALID && second == NULL);
    CHECK(tenure_mul_(y, tenure_int(2)) == TENURE_INVALID && strstr(tenure_last_error(), "an open access"));
    float numbers[4];
    CHECK(tenure_tensor_read(x, numbers, sizeof numbers) == TENURE_INVALID);
    for (int i = 0; i < 4; i++)
        ((float *)to)[i] = sqrtf(((float *)from)[i] * 4 * ((float *)from)[i]);
    tenure_access_end(access);
    CHECK(has(y, 4, (float[]){2, 4, 6, 8}));
    tenure_tensor_free(other);
    tenure_tensor_free(y);
    tenure_tensor_free(x);
}

static int freed = 0;

static void free_factor(void *factor) {
    freed++;
    free(factor);
}

/* The formula of x * factor * x, without a graph of its own. */
static tenure_status square_formula(void *factor, const tenure_tensor *const *saved, size_t saved_count,
                                    const tenure_tensor *const *grads, size_t output_count,
                                    tenure_tensor **input_grads, size_t input_count) {
    CHECK(saved_count == 1 && output_count == 1 && input_count == 1);
    if (*(float *)factor < 0)
        return tenure_fail(TENURE_INVALID, "the factor is negative");
    tenure_tensor *twice;
    tenure_status status = tenure_mul(saved[0], tenure_float(2 * *(float *)factor), &twice);
    if (status == TENURE_OK) {
        status = tenure_mul(grads[0], tenure_of(twice), &input_grads[0]);
        tenure_tensor_free(twice);
    }
    return status;
}

static tenure_tensor *square(tenure_tensor *x, float factor) {
    tenure_tensor *product, *y;
    tenure_grad_mode_push(false);
    CHECK(!tenure_grad_enabled() && tenure_mul(x, tenure_of(x), &product) == TENURE_OK);
    CHECK(tenure_mul(product, tenure_float(factor), &y) == TENURE_OK);
    tenure_tensor_free(product);
    tenure_grad_mode_pop();
    CHECK(tenure_grad_enabled());
    float *kept = malloc(sizeof *kept);
    *kept = factor;
    const tenure_tensor *outputs[] = {y}, *inputs[] = {x};
    CHECK(tenure_attach("square", outputs, 1, inputs, 1, inputs, 1, square_formula, kept, free_factor) == TENURE_OK);
    return y;
}

static void check_gradients(void) {
    tenure_tensor *x = matrix((float[]){1, -2, 3, 4}, 2, 2), *sum, *grad;
    CHECK(tenure_tensor_set_requires_grad(x, true) == TENURE_OK && tenure_tensor_requires_grad(x));
    CHECK(tenure_tensor_grad(x, &grad) == TENURE_OK && grad == NULL);
    tenure_tensor *y = square(x, 3);
    CHECK(tenure_tensor_requires_grad(y) && tenure_sum(y, NULL, 0, false, &sum) == TENURE_OK);
    CHECK(tenure_tensor_backward(sum) == TENURE_OK && tenure_tensor_grad(x, &grad) == TENURE_OK);
    CHECK(has(grad, 4, (float[]){6, -12, 18, 24}));
    tenure_tensor_free(sum);
    tenure_tensor_free(y);
    CHECK(freed == 1);

    y = square(x, -1);
    CHECK(tenure_sum(y, NULL, 0, false, &sum) == TENURE_OK);
    CHECK(tenure_tensor_backward(sum) == TENURE_INVALID && strstr(tenure_last_error(), "the factor is negative"));
    tenure_tensor_free(sum);
    tenure_tensor_free(y);
    CHECK(freed == 2);
    const tenure_tensor *leaf[] = {x};
    float *kept = malloc(sizeof *kept);
    CHECK(tenure_attach("alias", leaf, 1, leaf, 1, NULL, 0, square_formula, kept, free_factor) == TENURE_INVALID);
    CHECK(freed == 3 && strstr(tenure_last_error(), "output 0 is an input"));
    kept = malloc(sizeof *kept);
    CHECK(tenure_attach("none", NULL, 0, leaf, 1, NULL, 0, NULL, kept, free_factor) == TENURE_INVALID && freed == 4);
    tenure_tensor_free(grad);
    CHECK(tenure_tensor_detach(x, &y) == TENURE_OK && !tenure_tensor_requires_grad(y));
    tenure_tensor_free(y);
    tenure_tensor_free(x);
}

static void check_random(void) {
    tenure_generator *one = tenure_generator_new(7), *other = tenure_generator_new(7);
    tenure_tensor *x, *y;
    bool is_equal;
    const int64_t sizes[] = {3, 5};
    CHECK(tenure_randn(sizes, 2, TENURE_FLOAT32, TENURE_CPU, one, &x) == TENURE_OK);
    CHECK(tenure_randn(sizes, 2, TENURE_FLOAT32, TENURE_CPU, other, &y) == TENURE_OK);
    CHECK(tenure_equal(x, y, &is_equal) == TENURE_OK && is_equal);
    tenure_tensor_free(y);
    CHECK(tenure_randn(sizes, 2, TENURE_FLOAT32, TENURE_CPU, NULL, &y) == TENURE_OK);
    CHECK(tenure_equal(x, y, &is_equal) == TENURE_OK && !is_equal);
    tenure_tensor_free(y);
    tenure_tensor_free(x);
    tenure_generator_free(other);
    tenure_generator_free(one);
}

int main(void) {
    check_operations();
    check_failures();
    check_access();
    check_gradients();
    check_random();
    puts("ok");
    return 0;
}
