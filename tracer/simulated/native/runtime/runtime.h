/* What the parts of the simulated libcudart share. */
#ifndef TRACER_RUNTIME_H
#define TRACER_RUNTIME_H

#include "../driver/abi.h"
#include "abi.h"

#define API __attribute__((visibility("default")))

/* The driver's functions that the runtime uses, asked for with cuGetProcAddress. */
#define DRIVER_FUNCTIONS(D)                                                                      \
    D(cuInit, (unsigned int))                                                                    \
    D(cuDriverGetVersion, (int *))                                                               \
    D(cuDeviceGetCount, (int *))                                                                 \
    D(cuDeviceGetName, (char *, int, int))                                                       \
    D(cuDeviceGetUuid, (void *, int))                                                            \
    D(cuDeviceTotalMem, (size_t *, int))                                                         \
    D(cuDeviceGetAttribute, (int *, int, int))                                                   \
    D(cuDeviceGetPCIBusId, (char *, int, int))                                                   \
    D(cuDeviceCanAccessPeer, (int *, int, int))                                                  \
    D(cuDeviceGetDefaultMemPool, (void **, int))                                                 \
    D(cuDevicePrimaryCtxRetain, (CUcontext *, int))                                              \
    D(cuDevicePrimaryCtxReset, (int))                                                            \
    D(cuDevicePrimaryCtxSetFlags, (int, unsigned int))                                           \
    D(cuDevicePrimaryCtxGetState, (int, unsigned int *, int *))                                  \
    D(cuCtxSetCurrent, (CUcontext))                                                              \
    D(cuCtxSynchronize, (void))                                                                  \
    D(cuCtxGetLimit, (size_t *, int))                                                            \
    D(cuCtxSetLimit, (int, size_t))                                                              \
    D(cuCtxGetStreamPriorityRange, (int *, int *))                                               \
    D(cuLibraryLoadData, (CUlibrary *, const void *, int *, void **, unsigned int, int *, void **, \
                          unsigned int))                                                         \
    D(cuLibraryUnload, (CUlibrary))                                                              \
    D(cuLibraryGetKernel, (CUkernel *, CUlibrary, const char *))                                 \
    D(cuKernelGetFunction, (CUfunction *, CUkernel))                                             \
    D(cuFuncGetName, (const char **, CUfunction))                                                \
    D(cuFuncGetAttribute, (int *, int, CUfunction))                                              \
    D(cuFuncSetAttribute, (CUfunction, int, int))                                                \
    D(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, CUfunction, int, size_t))             \
    D(cuLaunchKernel, (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,       \
                       unsigned int, unsigned int, unsigned int, void *, void **, void **))      \
    D(cuLaunchKernelEx, (const CUlaunchConfig *, CUfunction, void **, void **))                  \
    D(cuLaunchCooperativeKernel, (CUfunction, unsigned int, unsigned int, unsigned int,          \
                                  unsigned int, unsigned int, unsigned int, unsigned int, void *, \
                                  void **))                                                      \
    D(cuStreamCreate, (void **, unsigned int))                                                   \
    D(cuStreamCreateWithPriority, (void **, unsigned int, int))                                  \
    D(cuStreamDestroy, (void *))                                                                 \
    D(cuStreamSynchronize, (void *))                                                             \
    D(cuStreamQuery, (void *))                                                                   \
    D(cuStreamWaitEvent, (void *, void *, unsigned int))                                         \
    D(cuStreamGetFlags, (void *, unsigned int *))                                                \
    D(cuStreamGetPriority, (void *, int *))                                                      \
    D(cuStreamGetId, (void *, unsigned long long *))                                             \
    D(cuStreamGetDevice, (void *, int *))                                                        \
    D(cuStreamBeginCapture, (void *, int))                                                       \
    D(cuStreamEndCapture, (void *, void **))                                                     \
    D(cuStreamIsCapturing, (void *, int *))                                                      \
    D(cuStreamGetCaptureInfo, (void *, int *, unsigned long long *, void **, const void **,      \
                               const void **, size_t *))                                         \
    D(cuThreadExchangeStreamCaptureMode, (int *))                                                \
    D(cuGraphCreate, (void **, unsigned int))                                                    \
    D(cuGraphDestroy, (void *))                                                                  \
    D(cuGraphGetNodes, (void *, void **, size_t *))                                              \
    D(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))                        \
    D(cuGraphInstantiateWithParams, (void **, void *, void *))                                   \
    D(cuGraphExecUpdate, (void *, void *, void *))                                               \
    D(cuGraphExecDestroy, (void *))                                                              \
    D(cuGraphUpload, (void *, void *))                                                           \
    D(cuGraphLaunch, (void *, void *))                                                           \
    D(cuEventCreate, (void **, unsigned int))                                                    \
    D(cuEventDestroy, (void *))                                                                  \
    D(cuEventRecord, (void *, void *))                                                           \
    D(cuEventRecordWithFlags, (void *, void *, unsigned int))                                    \
    D(cuEventQuery, (void *))                                                                    \
    D(cuEventSynchronize, (void *))                                                              \
    D(cuEventElapsedTime, (float *, void *, void *))                                             \
    D(cuMemAlloc, (CUdeviceptr *, size_t))                                                       \
    D(cuMemAllocPitch, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))                  \
    D(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned int))                                  \
    D(cuMemFree, (CUdeviceptr))                                                                  \
    D(cuMemAllocAsync, (CUdeviceptr *, size_t, void *))                                          \
    D(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, void *, void *))                          \
    D(cuMemFreeAsync, (CUdeviceptr, void *))                                                     \
    D(cuMemHostAlloc, (void **, size_t, unsigned int))                                           \
    D(cuMemFreeHost, (void *))                                                                   \
    D(cuMemHostRegister, (void *, size_t, unsigned int))                                         \
    D(cuMemHostUnregister, (void *))                                                             \
    D(cuMemHostGetDevicePointer, (CUdeviceptr *, void *, unsigned int))                          \
    D(cuMemGetInfo, (size_t *, size_t *))                                                        \
    D(cuPointerGetAttribute, (void *, int, CUdeviceptr))                                         \
    D(cuMemPoolSetAttribute, (void *, int, void *))                                              \
    D(cuMemPoolGetAttribute, (void *, int, void *))                                              \
    D(cuMemPoolTrimTo, (void *, size_t))                                                         \
    D(cuMemcpyHtoD, (CUdeviceptr, const void *, size_t))                                         \
    D(cuMemcpyDtoH, (void *, CUdeviceptr, size_t))                                               \
    D(cuMemcpyDtoD, (CUdeviceptr, CUdeviceptr, size_t))                                          \
    D(cuMemcpy, (CUdeviceptr, CUdeviceptr, size_t))                                              \
    D(cuMemcpyHtoDAsync, (CUdeviceptr, const void *, size_t, void *))                            \
    D(cuMemcpyDtoHAsync, (void *, CUdeviceptr, size_t, void *))                                  \
    D(cuMemcpyDtoDAsync, (CUdeviceptr, CUdeviceptr, size_t, void *))                             \
    D(cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, void *))                                 \
    D(cuMemsetD8, (CUdeviceptr, unsigned char, size_t))                                          \
    D(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, void *))

#define MEMBER(NAME, PARAMS) CUresult(*NAME) PARAMS;
struct driver {
    DRIVER_FUNCTIONS(MEMBER)
};
#undef MEMBER

/* The table for the legacy (0) or per-thread (1) default stream, with the thread's device current;
 * NULL with `*rc` set when there is none. */
const struct driver *driver(int per_thread, cudaError_t *rc);
/* The same without a device: for functions that must not create a context. */
const struct driver *bare_driver(cudaError_t *rc);
cudaError_t keep(cudaError_t rc); /* as the thread's last error, if it is one */
int thread_device(void);
/* The driver's function of a host stub or kernel handle, loaded on its first use. */
cudaError_t function_of(const struct driver *d, const void *stub, CUfunction *out);

/* A function and its per-thread twin, both around IMPL(driver, ...). */
#define ONE(NAME, PT, IMPL, PARAMS, ...)                                                         \
    API cudaError_t NAME PARAMS {                                                                \
        cudaError_t rc = 0;                                                                      \
        const struct driver *d = driver(PT, &rc);                                                \
        return keep(d == NULL ? rc : IMPL(d, ##__VA_ARGS__));                                    \
    }
#define PTSZ(NAME, IMPL, PARAMS, ...)                                                            \
    ONE(NAME, 0, IMPL, PARAMS, ##__VA_ARGS__)                                                    \
    ONE(NAME##_ptsz, 1, IMPL, PARAMS, ##__VA_ARGS__)
#define PTDS(NAME, IMPL, PARAMS, ...)                                                            \
    ONE(NAME, 0, IMPL, PARAMS, ##__VA_ARGS__)                                                    \
    ONE(NAME##_ptds, 1, IMPL, PARAMS, ##__VA_ARGS__)

#endif
