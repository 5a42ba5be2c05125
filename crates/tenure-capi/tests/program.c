/* Checks the C interface on the simulated device. tests/interface.rs runs this program. */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "tenure.h"

static void *stream(uintptr_t number) { return (void *)number; }

static int stats_have(const char *text) {
    char *json;
    size_t bytes;
    CHECK(tenure_stats_json(0, &json, &bytes) == TENURE_OK);
    CHECK(strlen(json) == bytes);
    int found = strstr(json, text) != NULL;
    tenure_free_buffer(json, bytes);
    return found;
}

static void *churn(void *argument) {
    void *blocks[64] = {0};
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < 20000; i++) {
        seed = seed * 1664525u + 1013904223u;
        void **block = &blocks[(seed >> 8) % 64];
        CHECK(tenure_free(0, *block) == TENURE_OK);
        CHECK(tenure_alloc(0, 1 + (seed >> 4) % 100000, argument, block) == TENURE_OK);
    }
    for (int i = 0; i < 64; i++)
        CHECK(tenure_free(0, blocks[i]) == TENURE_OK);
    return NULL;
}

static void *open_or_find_open(void *argument) {
    tenure_status status = tenure_open(0, "driver=sim,capacity=1073741824");
    CHECK(status == TENURE_OK || status == TENURE_ALREADY_OPEN);
    CHECK(tenure_free(0, NULL) == TENURE_OK);
    return argument;
}

int main(void) {
    void *block = NULL;
    CHECK(strlen(tenure_version()) > 0);
    CHECK(strcmp(tenure_last_error(), "") == 0);

    CHECK(tenure_alloc(0, 512, NULL, &block) == TENURE_NOT_OPEN);
    CHECK(tenure_free(-1, block) == TENURE_NOT_OPEN);
    CHECK(tenure_alloc(100000, 512, NULL, &block) == TENURE_NOT_OPEN);
    CHECK(strstr(tenure_last_error(), "device 100000 is not open"));
    CHECK(tenure_open(0, "driver=sim,speed=9") == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "speed=9"));
    CHECK(tenure_open(0, "driver=sim,capacity=0") == TENURE_INVALID);

    pthread_t openers[8];
    for (int i = 0; i < 8; i++)
        CHECK(pthread_create(&openers[i], NULL, open_or_find_open, NULL) == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pthread_join(openers[i], NULL) == 0);
    CHECK(tenure_open(0, "driver=sim") == TENURE_ALREADY_OPEN);

    CHECK(tenure_alloc(0, 512, NULL, NULL) == TENURE_INVALID);
    CHECK(tenure_alloc(0, 0, NULL, &block) == TENURE_OK && block == NULL);
    CHECK(tenure_free(0, NULL) == TENURE_OK);
    CHECK(tenure_alloc(0, 1 << 20, stream(1), &block) == TENURE_OK && block != NULL);
    CHECK(stats_have("\"allocated_bytes.all.current\":1048576"));
    CHECK(stats_have("\"overhead_bytes\":"));
    CHECK(tenure_record_stream(0, block, stream(3)) == TENURE_OK);
    CHECK(tenure_record_stream(0, block, stream(2)) == TENURE_INVALID);
    CHECK(strstr(tenure_last_error(), "cudaStreamPerThread"));
    CHECK(tenure_alloc(0, 512, stream(2), &block) == TENURE_INVALID);
    CHECK(tenure_free(0, block) == TENURE_OK);
    CHECK(tenure_free(0, block) == TENURE_UNKNOWN_ADDRESS);
    CHECK(tenure_record_stream(0, block, stream(3)) == TENURE_UNKNOWN_ADDRESS);

    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, churn, stream(i + 3)) == 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(tenure_empty_cache(0) == TENURE_OK);
    CHECK(stats_have("\"reserved_bytes.all.current\":0"));
    CHECK(tenure_reset_peak_stats(0) == TENURE_OK);
    CHECK(stats_have("\"reserved_bytes.all.peak\":0"));

    CHECK(tenure_alloc(0, (size_t)2 << 30, NULL, &block) == TENURE_OUT_OF_MEMORY);
    CHECK(strstr(tenure_last_error(), "CUDA out of memory. Tried to allocate 2.00 GiB.") == tenure_last_error());
    CHECK(tenure_set_memory_fraction(0, 2.0) == TENURE_INVALID);
    CHECK(tenure_set_memory_fraction(0, 0.25) == TENURE_OK);
    CHECK(tenure_alloc(0, (size_t)512 << 20, NULL, &block) == TENURE_OUT_OF_MEMORY);
    CHECK(strstr(tenure_last_error(), "raise its memory fraction"));

    char *pickle;
    size_t bytes;
    CHECK(tenure_snapshot(0, &pickle, &bytes) == TENURE_OK);
    CHECK(bytes > 0 && (unsigned char)pickle[0] == 0x80 && pickle[bytes - 1] == '.');
    tenure_free_buffer(pickle, bytes);
    tenure_free_buffer(NULL, 0);
    CHECK(tenure_stats_json(0, NULL, &bytes) == TENURE_INVALID);
    puts("ok");
    return 0;
}
