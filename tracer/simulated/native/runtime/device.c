/* Finding the driver, devices, and the errors of threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "runtime.h"

#define DEVICES 16

static struct driver tables[2];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t init_error;
static CUcontext contexts[DEVICES];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int device;
static __thread CUcontext bound;
static __thread cudaError_t last_error;

static void find_driver(void) {
    CUresult (*get)(const char *, void **, int, uint64_t, int *);
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    init_error = 35; /* no driver that is new enough */
    if (library == NULL) return;
    *(void **)&get = dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) return;
    for (int i = 0; i < 2; i++) {
        uint64_t flags = i == 0 ? 1 : 2;
#define FETCH(NAME, PARAMS)                                                                      \
    if (get(#NAME, (void **)&tables[i].NAME, RUNTIME * 1000, flags, NULL) != 0) return;
        DRIVER_FUNCTIONS(FETCH)
#undef FETCH
    }
    init_error = tables[0].cuInit(0);
}

const struct driver *bare_driver(cudaError_t *rc) {
    pthread_once(&once, find_driver);
    *rc = init_error;
    return init_error == 0 ? &tables[0] : NULL;
}

static cudaError_t bind(void) {
    cudaError_t rc = 0;
    if (device < 0 || device >= DEVICES) return 101;
    pthread_mutex_lock(&contexts_lock);
    if (contexts[device] == NULL) {
        rc = tables[0].cuDevicePrimaryCtxRetain(&contexts[device], device);
    }
    pthread_mutex_unlock(&contexts_lock);
    if (rc == 0) rc = tables[0].cuCtxSetCurrent(contexts[device]);
    if (rc == 0) bound = contexts[device];
    return rc;
}

const struct driver *driver(int per_thread, cudaError_t *rc) {
    pthread_once(&once, find_driver);
    *rc = init_error;
    if (*rc == 0 && bound == NULL) *rc = bind();
    return *rc == 0 ? &tables[per_thread] : NULL;
}

cudaError_t keep(cudaError_t rc) {
    if (rc != 0 && rc != 600) last_error = rc;
    return rc;
}

int thread_device(void) { return device; }

API cudaError_t cudaGetLastError(void) {
    cudaError_t rc = last_error;
    last_error = 0;
    return rc;
}

API cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {9, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {35, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {98, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {600, "cudaErrorNotReady", "device not ready"},
    {719, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};

static const char *describe(cudaError_t error, int text) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == error) return text ? errors[i].text : errors[i].name;
    }
    return "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error) { return describe(error, 1); }
API const char *cudaGetErrorName(cudaError_t error) { return describe(error, 0); }

API cudaError_t cudaRuntimeGetVersion(int *version) {
    if (version == NULL) return keep(1);
    *version = RUNTIME == 12 ? 12080 : 13000;
    return 0;
}

API cudaError_t cudaDriverGetVersion(int *version) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    if (version == NULL) return keep(1);
    *version = 0;
    return d == NULL ? 0 : keep(d->cuDriverGetVersion(version));
}

API cudaError_t cudaGetDeviceCount(int *count) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDeviceGetCount(count));
}

API cudaError_t cudaGetDevice(int *out) {
    if (out == NULL) return keep(1);
    *out = device;
    return 0;
}

API cudaError_t cudaSetDevice(int ordinal) {
    cudaError_t rc;
    int count = 0;
    const struct driver *d = bare_driver(&rc);
    if (d == NULL) return keep(rc);
    rc = d->cuDeviceGetCount(&count);
    if (rc == 0 && (ordinal < 0 || ordinal >= count)) rc = 101;
    if (rc != 0) return keep(rc);
    device = ordinal;
    bound = NULL;
    return keep(bind());
}

API cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDevicePrimaryCtxSetFlags(device, flags));
}

API cudaError_t cudaGetDeviceFlags(unsigned int *flags) {
    cudaError_t rc;
    int active;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDevicePrimaryCtxGetState(device, flags, &active));
}

API cudaError_t cudaInitDevice(int ordinal, unsigned int flags, unsigned int set) {
    (void)flags, (void)set;
    return cudaSetDevice(ordinal);
}

API cudaError_t cudaDeviceReset(void) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    if (d == NULL) return keep(rc);
    contexts[device] = bound = NULL;
    return keep(d->cuDevicePrimaryCtxReset(device));
}

API cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int ordinal) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDeviceGetAttribute(value, attribute, ordinal));
}

API cudaError_t cudaDeviceGetPCIBusId(char *id, int len, int ordinal) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDeviceGetPCIBusId(id, len, ordinal));
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int ordinal, int peer) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDeviceCanAccessPeer(can, ordinal, peer));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    (void)peer, (void)flags;
    return 0;
}

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int ordinal) {
    cudaError_t rc;
    const struct driver *d = bare_driver(&rc);
    return keep(d == NULL ? rc : d->cuDeviceGetDefaultMemPool(pool, ordinal));
}

static cudaError_t properties(cudaDeviceProp *p, int ordinal) {
    cudaError_t rc;
    int value = 0;
    const struct driver *d = bare_driver(&rc);
    if (d == NULL) return rc;
    if (p == NULL) return 1;
    memset(p, 0, sizeof *p);
    rc = d->cuDeviceGetName(p->name, sizeof p->name, ordinal);
    if (rc != 0) return rc;
    d->cuDeviceGetUuid(p->uuid, ordinal);
    d->cuDeviceTotalMem(&p->totalGlobalMem, ordinal);
#define COPY(FIELD, ATTRIBUTE)                                                                   \
    d->cuDeviceGetAttribute(&value, ATTRIBUTE, ordinal);                                         \
    p->FIELD = (__typeof__(p->FIELD))value;
    COPY(maxThreadsPerBlock, 1) COPY(maxThreadsDim[0], 2) COPY(maxThreadsDim[1], 3)
    COPY(maxThreadsDim[2], 4) COPY(maxGridSize[0], 5) COPY(maxGridSize[1], 6)
    COPY(maxGridSize[2], 7) COPY(sharedMemPerBlock, 8) COPY(totalConstMem, 9)
    COPY(warpSize, 10) COPY(memPitch, 11) COPY(regsPerBlock, 12) COPY(textureAlignment, 14)
    COPY(multiProcessorCount, 16) COPY(canMapHostMemory, 19) COPY(concurrentKernels, 31)
    COPY(pciBusID, 33) COPY(memoryBusWidth, 37) COPY(l2CacheSize, 38)
    COPY(maxThreadsPerMultiProcessor, 39) COPY(asyncEngineCount, 40) COPY(unifiedAddressing, 41)
    COPY(major, 75) COPY(minor, 76) COPY(streamPrioritiesSupported, 78)
    COPY(sharedMemPerMultiprocessor, 81) COPY(regsPerMultiprocessor, 82) COPY(managedMemory, 83)
    COPY(computePreemptionSupported, 90) COPY(cooperativeLaunch, 95)
    COPY(sharedMemPerBlockOptin, 97) COPY(maxBlocksPerMultiProcessor, 106)
    COPY(reservedSharedMemPerBlock, 111) COPY(memoryPoolsSupported, 115) COPY(clusterLaunch, 120)
#if RUNTIME < 13
    COPY(clockRate, 13) COPY(memoryClockRate, 36) COPY(deviceOverlap, 15)
#endif
#undef COPY
    return 0;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int ordinal) {
    return keep(properties(p, ordinal));
}

#if RUNTIME < 13
API cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp *p, int ordinal) {
    return keep(properties(p, ordinal));
}
#endif

static cudaError_t device_synchronize(const struct driver *d) { return d->cuCtxSynchronize(); }

ONE(cudaDeviceSynchronize, 0, device_synchronize, (void))

static cudaError_t get_limit(const struct driver *d, size_t *value, int limit) {
    return d->cuCtxGetLimit(value, limit);
}

static cudaError_t set_limit(const struct driver *d, int limit, size_t value) {
    return d->cuCtxSetLimit(limit, value);
}

static cudaError_t priorities(const struct driver *d, int *least, int *greatest) {
    return d->cuCtxGetStreamPriorityRange(least, greatest);
}

ONE(cudaDeviceGetLimit, 0, get_limit, (size_t *value, int limit), value, limit)
ONE(cudaDeviceSetLimit, 0, set_limit, (int limit, size_t value), limit, value)
ONE(cudaDeviceGetStreamPriorityRange, 0, priorities, (int *l, int *g), l, g)

static cudaError_t entry_point(const char *name, void **out, unsigned int version,
                               unsigned long long flags, int *status) {
    CUresult (*get)(const char *, void **, int, uint64_t, int *);
    cudaError_t rc;
    void *library;
    if (bare_driver(&rc) == NULL) return rc;
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    *(void **)&get = library == NULL ? NULL : dlsym(library, "cuGetProcAddress_v2");
    if (get == NULL) return 35;
    rc = get(name, out, (int)version, flags == 0 ? 1 : flags, status);
    return rc == 500 && status != NULL ? 0 : rc;
}

#define ENTRY(NAME, FLAGS)                                                                       \
    API cudaError_t NAME(const char *name, void **out, unsigned long long flags, int *status) {  \
        return keep(entry_point(name, out, RUNTIME * 1000, flags == 0 ? FLAGS : flags, status)); \
    }
#if RUNTIME < 13
ENTRY(cudaGetDriverEntryPoint, 1)
ENTRY(cudaGetDriverEntryPoint_ptsz, 2)
#endif

#define ENTRY_BY_VERSION(NAME, FLAGS)                                                            \
    API cudaError_t NAME(const char *name, void **out, unsigned int version,                     \
                         unsigned long long flags, int *status) {                                \
        return keep(entry_point(name, out, version, flags == 0 ? FLAGS : flags, status));        \
    }
ENTRY_BY_VERSION(cudaGetDriverEntryPointByVersion, 1)
ENTRY_BY_VERSION(cudaGetDriverEntryPointByVersion_ptsz, 2)

API cudaError_t cudaProfilerStart(void) { return 0; }
API cudaError_t cudaProfilerStop(void) { return 0; }

/* For the functions of the list that nothing here implements: each is a weak function that says its
 * name once. */
int refuse(const char *name, int *said) {
    if (!__sync_lock_test_and_set(said, 1)) {
        fprintf(stderr, "tracer: the simulated libcudart %d does not implement %s.\n", RUNTIME,
                name);
    }
    return keep(801);
}
