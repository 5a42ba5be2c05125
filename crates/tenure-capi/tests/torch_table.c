/* Makes the calls of PyTorch's shim, without PyTorch, on the simulated device. tests/interface.rs runs this program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tenure_torch.h"

static const tenure_torch_api *api;

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, api->last_error());       \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)
#define OK(call) CHECK((call) == TENURE_OK)

static const tenure_object nothing = {NULL, NULL};
static const tenure_pool common = {0, 0}, mine = {0, 7};

static int dropped;
static void drop(void *pointer) { dropped += *(int *)pointer; }

static int calls;
static bool yes(void *user, void *stream) { return (void)user, (void)stream, true; }
static bool free_nothing(void *user) { return (void)user, calls++, false; }
static void observe(void *user, const tenure_out_of_memory *error) { *(uint64_t *)user = error->requested; }
static void track(void *user, const tenure_event *event) { ((int *)user)[event->action]++; }
static void count(void *user, void *address) { *(int *)user += address != NULL; }
static void keep(void *user, const char *handle, size_t bytes) { *(size_t *)user = handle != NULL ? bytes : 0; }

static char segment_bytes[64 << 20];
static void *source_allocate(void *user, size_t bytes, void *stream) {
    (void)user, (void)stream;
    return bytes <= sizeof segment_bytes ? segment_bytes : NULL;
}
static void source_free(void *user, void *address, size_t bytes, void *stream) {
    (void)user, (void)bytes, (void)stream;
    calls += address == segment_bytes;
}

struct seen {
    int segments, blocks, live, with_context, events, annotations;
};
static void see_segment(void *user, const tenure_segment *segment) {
    ((struct seen *)user)->segments += segment->address != 0;
}
static void see_block(void *user, const tenure_segment_block *block) {
    struct seen *seen = user;
    seen->blocks++;
    seen->live += block->is_allocated;
    seen->with_context += block->context != NULL && *(int *)block->context == 100;
}
static void see_event(void *user, const tenure_event *event) { ((struct seen *)user)->events += event->time_us > 0; }
static void see_annotation(void *user, const tenure_annotation *annotation) {
    ((struct seen *)user)->annotations += annotation->count == 1 && strcmp(annotation->metadata[1], "value") == 0;
}

static struct seen look(tenure_pool pool) {
    struct seen seen = {0};
    const tenure_visitor visitor = {&seen, see_segment, see_block, see_event, see_annotation};
    OK(api->snapshot(0, pool, true, &visitor));
    return seen;
}

static void blocks_and_figures(void) {
    void *block, *first;
    size_t bytes;
    int device = -1;
    tenure_statistics figures;
    OK(api->allocate(0, 1000, NULL, nothing, &block));
    CHECK(api->is_open(0) && !api->is_open(1));
    CHECK(api->configure("driver=sim") == TENURE_ALREADY_OPEN);
    OK(api->block(block, &device, &bytes));
    CHECK(device == 0 && bytes == 1024);
    OK(api->extent(block, &first, &bytes));
    CHECK(first <= block && bytes >= 1024);
    OK(api->statistics(0, &figures));
    CHECK(figures.requested_bytes[0].current == 1000 && figures.allocated_bytes[1].current == 1024);
    CHECK(figures.max_split_size == -1);
    OK(api->record_stream(block, (void *)5));
    OK(api->free(block, nothing));
    CHECK(api->free(block, nothing) == TENURE_UNKNOWN_ADDRESS);
    OK(api->reset_peak_statistics(0));
    OK(api->reset_accumulated_statistics(0));
    OK(api->statistics(0, &figures));
    CHECK(figures.allocation[0].peak == 0 && figures.allocation[0].allocated == 0);
    OK(api->largest_free(0, &bytes));
    OK(api->release_cached(0, common, nothing));
}

static void no_memory(void) {
    void *block;
    uint64_t requested = 0;
    double fraction = 0;
    bool applies = false;
    const double divisions[16] = {4}, split = 1 << 30;
    OK(api->add_out_of_memory_observer(observe, (tenure_object){&requested, NULL}));
    OK(api->add_free_memory_callback(free_nothing, nothing));
    CHECK(api->allocate(0, (size_t)1 << 40, NULL, nothing, &block) == TENURE_OUT_OF_MEMORY);
    CHECK(strstr(api->last_error(), "CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity of"));
    CHECK(requested == (uint64_t)1 << 40 && calls > 0);
    CHECK(api->allocate(0, (size_t)1 << 59, NULL, nothing, &block) == TENURE_OUT_OF_MEMORY);
    OK(api->set_memory_fraction(0, 0.5));
    OK(api->memory_fraction(0, &fraction));
    CHECK(fraction == 0.5);
    OK(api->set_memory_fraction(-1, 1)); /* of every device */
    OK(api->memory_fraction(0, &fraction));
    CHECK(fraction == 1);
    OK(api->set_memory_fraction(-1, 0.75));
    OK(api->memory_fraction(3, &fraction)); /* device 3 is not open, and this call does not open it */
    CHECK(fraction == 0.75 && !api->is_open(3));
    OK(api->set_memory_fraction(-1, 1));
    OK(api->tune(TENURE_ROUNDUP_POWER2_DIVISIONS, divisions, 16, &applies));
    CHECK(applies);
    OK(api->tune(TENURE_MAX_SPLIT_BYTES, &split, 1, &applies));
    CHECK(!applies);
}

static void keep_context(void *user, void *context) { *(void **)user = context; }

static void history(void) {
    static int hundred = 100, thousand = 1000, events[10];
    void *context = NULL;
    const int skip[] = {7}; /* snapshots */
    const tenure_recording recording = {100, 3, skip, 1};
    const char *const metadata[] = {"name", "value"};
    void *block;
    OK(api->add_tracker(track, (tenure_object){events, NULL}));
    OK(api->record_history(&recording, true));
    OK(api->allocate(0, 1 << 20, NULL, (tenure_object){&hundred, drop}, &block));
    OK(api->annotate(0, metadata, 1));
    OK(api->annotate_block(block, nothing));
    CHECK(api->annotate_block(&block, nothing) == TENURE_UNKNOWN_ADDRESS);
    OK(api->context(block, keep_context, &context));
    CHECK(context == &hundred);
    const struct seen seen = look(common);
    CHECK(seen.segments > 0 && seen.live == 1 && seen.with_context == 1 && seen.annotations == 1);
    CHECK(seen.events == events[0] + events[3] + events[5] + events[9] && events[9] == 1);
    api->set_note((tenure_object){&thousand, drop});
    OK(api->free(block, nothing));
    CHECK(events[0] == 1 && events[1] == 1 && events[2] == 1);
    api->set_note(nothing);
    OK(api->record_history(NULL, true));
    CHECK(look(common).events == 0);
    OK(api->release_cached(0, common, nothing)); /* frees the segment that was made for the block */
    CHECK(dropped == 1100);
}

static void pools(void) {
    static int million = 1000000;
    void *block, *other;
    size_t uses = 9;
    int live = 0, told = 0;
    tenure_checkpoint *checkpoint;
    OK(api->create_pool(0, mine, NULL));
    OK(api->begin_pool(0, mine, true, yes, (tenure_object){&million, drop}));
    OK(api->allocate(0, 4 << 20, NULL, nothing, &block));
    OK(api->checkpoint(0, mine, &checkpoint));
    OK(api->allocate(0, 4 << 20, NULL, nothing, &other));
    OK(api->end_pool(0, mine));
    CHECK(dropped == 1001100);
    OK(api->pool_uses(0, mine, &uses));
    CHECK(uses == 2);
    OK(api->live_blocks(0, mine, count, &live));
    CHECK(live == 2);
    CHECK(look(mine).live == 2);
    OK(api->restore(0, checkpoint, count, count, &told));
    CHECK(told == 3); /* two lived before, one lives now */
    api->drop_checkpoint(checkpoint);
    OK(api->use_pool_on_oom(0, mine, true));
    OK(api->set_no_split(0, mine));
    OK(api->free(block, nothing));
    OK(api->release_pool(0, mine));
    OK(api->release_pool(0, mine));
    OK(api->release_cached(0, mine, nothing));

    const tenure_pool theirs = {0, 8};
    const tenure_pool_source source = {{&million, drop}, source_allocate, source_free};
    OK(api->create_pool(0, theirs, &source));
    OK(api->begin_pool(0, theirs, true, yes, nothing));
    OK(api->allocate(0, 1 << 20, NULL, nothing, &block));
    OK(api->end_pool(0, theirs));
    CHECK(block == segment_bytes);
    OK(api->free(block, nothing));
    calls = 0;
    OK(api->release_pool(0, theirs));
    OK(api->release_pool(0, theirs));
    OK(api->release_cached(0, theirs, nothing));
    CHECK(calls == 1 && dropped == 2001100);
}

static void sharing(void) {
    void *block, *address;
    size_t offset, bytes = 0;
    tenure_imported *imported;
    OK(api->allocate(0, 4 << 20, NULL, nothing, &block));
    OK(api->share(block, &offset, keep, &bytes));
    CHECK(bytes > 0);
    OK(api->free(block, nothing));
    CHECK(api->share(block, &offset, keep, &bytes) == TENURE_NOT_SHAREABLE);
    CHECK(api->open_shared(0, "none", 4, &address, &imported) != TENURE_OK);
    CHECK(api->enable_peer(0, 0) != TENURE_OK);
}

int main(void) {
    api = tenure_torch_table();
    CHECK(api->size == sizeof(tenure_torch_api) && api->abi == TENURE_TORCH_ABI);
    CHECK(api->configure("driver=none") == TENURE_INVALID);
    OK(api->configure("driver=sim,capacity=1073741824"));
    CHECK(!api->is_open(0));
    blocks_and_figures();
    no_memory();
    history();
    pools();
    sharing();
    puts("ok");
    return 0;
}
