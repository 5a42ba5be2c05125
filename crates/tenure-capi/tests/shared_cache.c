/* Checks the shared cache between two processes, on the simulated device. tests/interface.rs runs this program. */
/* mkdtemp() and fork() are not of C11. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "tenure.h"

enum { MIB = 1 << 20 };

static char socket_path[64];
static void *first = (void *)8;
static void *second = (void *)16;

static void open_device(void) { CHECK(tenure_open(0, "driver=sim,capacity=1073741824") == TENURE_OK); }

static void tell(int pipe) { CHECK(write(pipe, "x", 1) == 1); }

static void hear(int pipe) {
    char byte;
    CHECK(read(pipe, &byte, 1) == 1);
}

/* Reads what the owner publishes, and computes when the owner has stopped. */
static void work(int from_owner, int to_owner) {
    void *block;
    void *other;
    open_device();
    CHECK(tenure_recv_shared_cache(0, socket_path, 0, 0, 0.0) == TENURE_NO_SHARED_CACHE);
    CHECK(tenure_recv_shared_cache(0, socket_path, 0, 0, -1.0) == TENURE_INVALID);
    CHECK(tenure_insert_shared_cache_for_computation(0, first) == TENURE_NO_SHARED_CACHE);
    CHECK(strstr(tenure_last_error(), "recv_shared_cache"));
    tell(to_owner);
    CHECK(tenure_recv_shared_cache(0, socket_path, 0, 0, 60.0) == TENURE_OK);
    CHECK(tenure_recv_shared_cache(0, socket_path, 0, 0, 0.0) == TENURE_OK);

    hear(from_owner);
    CHECK(tenure_insert_shared_cache_for_parameter(0, first, 9) == TENURE_INVALID);
    CHECK(tenure_insert_shared_cache_for_parameter(0, first, TENURE_SHARED_READ) == TENURE_OK);
    CHECK(tenure_recv_shared_cache(0, socket_path, 0, 0, 0.0) == TENURE_SHARED_CACHE_IN_USE);
    CHECK(tenure_alloc(0, 3 * MIB, first, &block) == TENURE_INVALID);
    CHECK(tenure_alloc(0, 4 * MIB, first, &block) == TENURE_OK);
    CHECK(tenure_insert_shared_cache_for_computation(0, first) == TENURE_SHARED_CACHE_IN_USE);
    CHECK(tenure_alloc(0, 1 * MIB, first, &other) == TENURE_OK);
    CHECK((char *)other - (char *)block == 4 * MIB);
    CHECK(tenure_insert_shared_cache_for_parameter(0, second, TENURE_SHARED_WRITE) == TENURE_SHARED_CACHE_IN_USE);

    CHECK(tenure_insert_shared_cache_for_computation(0, first) == TENURE_OK);
    CHECK(tenure_insert_shared_cache_for_computation(0, first) == TENURE_SHARED_CACHE_IN_USE);
    void *refused;
    CHECK(tenure_alloc(0, 20 * MIB, first, &refused) != TENURE_OK);
    tell(to_owner);
    hear(from_owner);
    void *computed;
    CHECK(tenure_alloc(0, 20 * MIB, first, &computed) == TENURE_OK);
    CHECK((char *)computed - (char *)block == 32 * MIB);
    CHECK(tenure_clear_shared_cache(0) == TENURE_SHARED_CACHE_IN_USE);
    CHECK(tenure_free(0, computed) == TENURE_OK);
    CHECK(tenure_free(0, block) == TENURE_OK);
    CHECK(tenure_free(0, other) == TENURE_OK);
    CHECK(tenure_clear_shared_cache(0) == TENURE_OK);
    exit(0);
}

static void own(int from_worker, int to_worker) {
    void *block;
    void *other;
    CHECK(tenure_allocate_shared_cache(0, 96 * MIB, 32 * MIB, 64 * MIB) == TENURE_NOT_OPEN);
    open_device();
    CHECK(tenure_send_shared_cache(0, socket_path) == TENURE_NO_SHARED_CACHE);
    CHECK(tenure_clear_shared_cache(0) == TENURE_NO_SHARED_CACHE);
    CHECK(tenure_allocate_shared_cache(0, 64 * MIB, 32 * MIB, 64 * MIB) == TENURE_INVALID);
    CHECK(tenure_allocate_shared_cache(0, (size_t)4 << 30, (size_t)1 << 30, (size_t)3 << 30) == TENURE_OUT_OF_MEMORY);
    CHECK(tenure_allocate_shared_cache(0, 128 * MIB, 32 * MIB, 64 * MIB) == TENURE_OK);
    CHECK(tenure_allocate_shared_cache(0, 128 * MIB, 32 * MIB, 64 * MIB) == TENURE_SHARED_CACHE_IN_USE);
    hear(from_worker);
    CHECK(tenure_send_shared_cache(0, socket_path) == TENURE_OK);
    CHECK(tenure_send_shared_cache(0, socket_path) == TENURE_OK);
    CHECK(tenure_send_shared_cache(0, "elsewhere") == TENURE_SHARED_CACHE_IN_USE);

    CHECK(tenure_insert_shared_cache_for_parameter(0, first, TENURE_SHARED_READ) == TENURE_SHARED_CACHE_IN_USE);
    CHECK(strstr(tenure_last_error(), "no parameters are published"));
    CHECK(tenure_publish_shared_parameters(0) == TENURE_SHARED_CACHE_IN_USE);
    CHECK(tenure_insert_shared_cache_for_parameter(0, first, TENURE_SHARED_WRITE) == TENURE_OK);
    CHECK(tenure_alloc(0, 4 * MIB, first, &block) == TENURE_OK);
    CHECK(tenure_alloc(0, 1 * MIB, first, &other) == TENURE_OK);
    CHECK(tenure_publish_shared_parameters(0) == TENURE_OK);

    void *computed;
    CHECK(tenure_insert_shared_cache_for_computation(0, first) == TENURE_OK);
    CHECK(tenure_alloc(0, 20 * MIB, first, &computed) == TENURE_OK);
    CHECK((char *)computed - (char *)block == 32 * MIB);
    tell(to_worker);
    hear(from_worker);
    CHECK(tenure_free(0, computed) == TENURE_OK);
    CHECK(tenure_free(0, block) == TENURE_OK);
    CHECK(tenure_free(0, other) == TENURE_OK);
    CHECK(tenure_clear_shared_cache(0) == TENURE_OK);

    /* The rest of the cache, by its offset. */
    CHECK(tenure_insert_shared_cache(0, 32 * MIB, 128 * MIB, second) != TENURE_OK);
    CHECK(tenure_insert_shared_cache(0, 32 * MIB, 96 * MIB, second) == TENURE_OK);
    CHECK(tenure_alloc(0, 30 * MIB, second, &other) == TENURE_OK);
    CHECK((char *)other - (char *)block == 96 * MIB);
    CHECK(tenure_free(0, other) == TENURE_OK);
    CHECK(tenure_clear_shared_cache(0) == TENURE_OK);
    tell(to_worker);
}

int main(void) {
    int to_worker[2];
    int to_owner[2];
    char folder[] = "/tmp/tenure-cache-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    snprintf(socket_path, sizeof socket_path, "%s/cache.sock", folder);
    CHECK(pipe(to_worker) == 0 && pipe(to_owner) == 0);
    /* No process has used the device before. */
    pid_t worker = fork();
    CHECK(worker >= 0);
    close(worker == 0 ? to_owner[0] : to_owner[1]);
    close(worker == 0 ? to_worker[1] : to_worker[0]);
    if (worker == 0)
        work(to_worker[0], to_owner[1]);
    own(to_owner[0], to_worker[1]);
    int status;
    CHECK(waitpid(worker, &status, 0) == worker && status == 0);
    puts("ok");
    return 0;
}
