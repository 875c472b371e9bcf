/* SPDX-License-Identifier: Apache-2.0 */
#include "trf_nvtx.h"

#if defined(__has_include)
#if __has_include(<nvtx3/nvToolsExt.h>)
#define TRF_HAVE_NVTX 1
#endif
#endif

#ifdef TRF_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

static nvtxDomainHandle_t domain; /* NULL if no profiler listens */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void create_domain(void) { domain = nvtxDomainCreateA("transfuse"); }

void trf_nvtx_push(const char *name) {
    pthread_once(&once, create_domain);
    if (!domain)
        return;
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };
    nvtxDomainRangePushEx(domain, &attributes);
}

void trf_nvtx_pop(void) {
    if (domain)
        nvtxDomainRangePop(domain);
}

#else

void trf_nvtx_push(const char *name) { (void)name; }
void trf_nvtx_pop(void) {}

#endif
