/* cuGetProcAddress: the same choice among versions and twins that the header's macros make. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "driver.h"

/* Where a later version of a function came with a later CUDA; the rest had _v2 by 4.0. */
static const struct {
    const char *name, *suffix;
    int since;
} versions[] = {
    {"cuCtxCreate", "_v4", 12050},
    {"cuCtxCreate", "_v3", 11040},
    {"cuStreamBeginCapture", "_v2", 10010},
    {"cuStreamGetCaptureInfo", "_v3", 12030},
    {"cuStreamGetCaptureInfo", "_v2", 11030},
    {"cuStreamUpdateCaptureDependencies", "_v2", 12030},
    {"cuGraphInstantiate", "_v2", 11000},
    {"cuGraphExecUpdate", "_v2", 12000},
    {"cuGraphAddKernelNode", "_v2", 12000},
    {"cuGraphKernelNodeGetParams", "_v2", 12000},
    {"cuGraphKernelNodeSetParams", "_v2", 12000},
    {"cuGraphExecKernelNodeSetParams", "_v2", 12000},
    {"cuGraphAddNode", "_v2", 12030},
    {"cuGetProcAddress", "_v2", 12000},
    {"cuEventElapsedTime", "_v2", 12080},
    {"cuMemAdvise", "_v2", 12020},
    {"cuMemPrefetchAsync", "_v2", 12020},
    {"cuDeviceGetUuid", "_v2", 11040},
    {"cuStreamGetCtx", "", 0}, /* these three have a _v2 that the header does not choose */
    {"cuCtxGetDevice", "", 0},
    {"cuCtxSynchronize", "", 0},
    {NULL, NULL, 0},
};

static void *self(void) {
    static void *handle;
    Dl_info info;
    if (handle == NULL && dladdr((void *)&self, &info) != 0) {
        handle = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    return handle;
}

static void *lookup(const char *name, const char *suffix, int per_thread) {
    static const char *const twins[] = {"_ptsz", "_ptds"};
    char full[128];
    void *p;
    for (int i = 0; per_thread && i < 2; i++) {
        snprintf(full, sizeof full, "%s%s%s", name, suffix, twins[i]);
        if ((p = dlsym(self(), full)) != NULL) return p;
    }
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return dlsym(self(), full);
}

static CUresult find(const char *name, void **out, int version, int per_thread, int *status) {
    int special = 0;
    if (name == NULL || out == NULL) return INVALID_VALUE;
    *out = NULL;
    if (strncmp(name, "cu", 2) != 0 || self() == NULL) return NOT_FOUND;
    for (int i = 0; versions[i].name != NULL && *out == NULL; i++) {
        if (strcmp(versions[i].name, name) != 0) continue;
        special = 1;
        if (version >= versions[i].since) *out = lookup(name, versions[i].suffix, per_thread);
    }
    if (*out == NULL && !special && version >= 4000) *out = lookup(name, "_v2", per_thread);
    if (*out == NULL) *out = lookup(name, "", per_thread);
    if (status != NULL) *status = *out == NULL ? 1 : 0;
    return *out == NULL ? NOT_FOUND : OK;
}

API CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
    return find(name, out, version, (flags & 2) != 0, NULL);
}

API CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags,
                                 int *status) {
    return find(name, out, version, (flags & 2) != 0, status);
}

/* For the functions of the list that nothing here implements: each is a weak function that says its
 * name once. */
CUresult refuse(const char *name, int *said) {
    if (!__sync_lock_test_and_set(said, 1)) {
        fprintf(stderr, "tracer: the simulated libcuda does not implement %s.\n", name);
    }
    return NOT_SUPPORTED;
}
