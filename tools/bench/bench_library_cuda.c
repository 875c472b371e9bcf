/* SPDX-License-Identifier: Apache-2.0 */
#include "bench_library_cuda.h"

#include "cli_messages.h"

#include <dlfcn.h>

int bench_library_find(void *library, const char *name, const bench_library_function *functions, size_t count) {
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, functions[i].name);
        if (!function) {
            cli_fail(TRF_ERR_UNSUPPORTED, "bench: %s has no %s", name, functions[i].name);
            return -1;
        }
        *(void **)functions[i].pointer = function; /* as POSIX has it */
    }
    return 0;
}
