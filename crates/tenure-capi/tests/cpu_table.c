/* Makes the calls of PyTorch's CPU shim, on a thread that has chosen no allocator. tests/interface.rs runs this
 * program. */
#include <stdio.h>
#include <string.h>

#include "tenure_cpu.h"

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                        \
            return 1;                                                                                      \
        }                                                                                                  \
    } while (0)

int main(void) {
    const tenure_cpu_api *api = tenure_cpu_table();
    CHECK(api->size == sizeof *api && api->abi == TENURE_CPU_ABI);
    CHECK(!api->is_chosen());
    int here;
    void *data = &here;
    CHECK(api->allocate(8, &data) == TENURE_INVALID && data == &here);
    CHECK(strstr(api->last_error(), "has chosen no allocator") != NULL);
    CHECK(!api->free(&here) && !api->free(NULL));
    puts("ok");
    return 0;
}
