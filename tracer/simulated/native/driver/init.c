/* Initialisation, devices, errors. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_handle *sim;
uint32_t client = SIM_NONE;
static int forked;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static void in_child(void) { forked = client != SIM_NONE; }

CUresult ready(void) { return sim != NULL && !forked ? OK : NOT_INITIALIZED; }

/* Loads the tool that CUDA_INJECTION64_PATH names, once in a process. */
static CUresult inject(void) {
    static _Atomic int is_done;
    const char *path = getenv("CUDA_INJECTION64_PATH");
    void *library;
    int (*initialize)(void);
    if (path == NULL || path[0] == 0 || atomic_exchange(&is_done, 1)) return OK;
    library = dlopen(path, RTLD_NOW);
    initialize = library == NULL ? NULL : dlsym(library, "InitializeInjection");
    if (initialize == NULL) {
        fprintf(stderr, "tracer: CUDA_INJECTION64_PATH cannot be used: %s\n", dlerror());
        return UNKNOWN;
    }
    initialize();
    return OK;
}

API CUresult cuInit(unsigned int flags) {
    CUresult rc = OK;
    static int hooked;
    if (flags != 0) return INVALID_VALUE;
    if (forked) return NOT_INITIALIZED;
    pthread_mutex_lock(&init_lock);
    if (sim == NULL) sim = sim_from_environment();
    if (sim == NULL) rc = NO_DEVICE;
    if (!hooked) hooked = pthread_atfork(NULL, NULL, in_child) == 0;
    pthread_mutex_unlock(&init_lock);
    return rc == OK ? inject() : rc;
}

API CUresult cuDriverGetVersion(int *version) {
    struct sim_handle *h = sim_from_environment();
    if (version == NULL) return INVALID_VALUE;
    *version = h == NULL ? 13000 : (int)h->state->global.driver_version;
    return OK;
}

static CUresult check(CUdevice device, const void *out) {
    if (ready() != OK) return NOT_INITIALIZED;
    if (out == NULL) return INVALID_VALUE;
    return device >= 0 && device < (int)sim->state->devices ? OK : INVALID_DEVICE;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CUresult rc = check(ordinal, device);
    if (rc == OK) *device = ordinal;
    return rc;
}

API CUresult cuDeviceGetCount(int *count) {
    CUresult rc = check(0, count);
    if (rc == OK) *count = (int)sim->state->devices;
    return rc;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
    CUresult rc = check(device, name);
    if (rc == OK) snprintf(name, (size_t)len, "Simulated GPU");
    return rc;
}

static CUresult uuid(unsigned char *out, CUdevice device) {
    CUresult rc = check(device, out);
    if (rc != OK) return rc;
    memset(out, 0, 16);
    out[0] = 0x51;
    out[6] = 0x40;
    out[8] = 0x80;
    out[15] = (unsigned char)device;
    return OK;
}

API CUresult cuDeviceGetUuid(void *out, CUdevice device) { return uuid(out, device); }

API CUresult cuDeviceGetUuid_v2(void *out, CUdevice device) { return uuid(out, device); }

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult rc = check(device, bytes);
    if (rc == OK) *bytes = (size_t)sim->state->device[device].config.memory_bytes;
    return rc;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    CUresult rc = check(device, major);
    if (rc != OK) return rc;
    *major = 9;
    *minor = 0;
    return OK;
}

/* Numbers are those of CUdevice_attribute. */
API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    const struct sim_config *c;
    CUresult rc = check(device, value);
    if (rc != OK) return rc;
    c = &sim->state->device[device].config;
    switch (attribute) {
    case 1: *value = 1024; break;               /* threads per block */
    case 2: case 3: *value = 1024; break;       /* block x, y */
    case 4: *value = 64; break;
    case 5: *value = 2147483647; break;         /* grid x */
    case 6: case 7: *value = 65535; break;
    case 8: *value = 49152; break;              /* shared memory per block */
    case 9: *value = 65536; break;
    case 10: *value = 32; break;                /* warp */
    case 11: *value = 2147483647; break;
    case 12: *value = 65536; break;
    case 13: *value = (int)(c->clock_mhz * 1000); break;
    case 14: *value = 512; break;
    case 15: *value = 1; break;
    case 16: *value = (int)c->sm_count; break;
    case 19: *value = 1; break;
    case 31: *value = 1; break;                 /* concurrent kernels */
    case 33: *value = device + 1; break;        /* bus */
    case 36: *value = (int)(c->memory_clock_mhz * 1000); break;
    case 37: *value = 5120; break;
    case 38: *value = 50 << 20; break;          /* L2 */
    case 39: *value = 2048; break;
    case 40: *value = 3; break;                 /* copy engines */
    case 41: *value = 1; break;                 /* unified addressing */
    case 75: *value = 9; break;
    case 76: *value = 0; break;
    case 78: *value = 1; break;                 /* stream priorities */
    case 81: *value = 233472; break;
    case 82: *value = 65536; break;
    case 83: *value = 1; break;                 /* managed memory */
    case 89: *value = 1; break;
    case 90: *value = 1; break;                 /* compute preemption */
    case 95: *value = 1; break;                 /* cooperative launch */
    case 97: *value = 232448; break;            /* shared memory by opting in */
    case 102: *value = 1; break;                /* virtual memory management */
    case 106: *value = 32; break;               /* blocks per multiprocessor */
    case 111: *value = 1024; break;
    case 115: *value = 1; break;                /* memory pools */
    case 120: *value = 1; break;                /* cluster launch */
    default: *value = 0;
    }
    return OK;
}

API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device) {
    CUresult rc = check(device, id);
    if (rc == OK) snprintf(id, (size_t)len, "0000:%02X:00.0", device + 1);
    return rc;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult rc = check(device, can);
    if (rc == OK) rc = check(peer, can);
    if (rc == OK) *can = device != peer;
    return rc;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult error, const char **out, int text) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code != error) continue;
        *out = text ? errors[i].text : errors[i].name;
        return OK;
    }
    *out = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **out) { return describe(error, out, 1); }

API CUresult cuGetErrorName(CUresult error, const char **out) { return describe(error, out, 0); }
