/* The types of the runtime's interface that this library takes part in, from its public description.
 * RUNTIME is 12 or 13. */
#ifndef TRACER_RUNTIME_ABI_H
#define TRACER_RUNTIME_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef void *cudaEvent_t;
typedef void *cudaGraph_t;
typedef void *cudaGraphExec_t;
typedef void *cudaKernel_t;
typedef void *cudaFunction_t;
typedef void *cudaLibrary_t;
typedef void *cudaMemPool_t;

typedef struct {
    unsigned int x, y, z;
} dim3;

typedef struct {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    void *attrs;
    unsigned int numAttrs;
} cudaLaunchConfig_t;

typedef struct {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA;
    int maxDynamicSharedSizeBytes, preferredShmemCarveout, clusterDimMustBeSet;
    int requiredClusterWidth, requiredClusterHeight, requiredClusterDepth;
    int clusterSchedulingPolicyAllowed, nonPortableClusterSizeAllowed;
    int reserved[16];
} cudaFuncAttributes;

typedef struct {
    int type, device;
    void *devicePointer, *hostPointer;
} cudaPointerAttributes;

typedef struct {
    void *ptr;
    size_t pitch, xsize, ysize;
} cudaPitchedPtr;

typedef struct {
    size_t width, height, depth;
} cudaExtent;

typedef struct {
    size_t x, y, z;
} cudaPos;

typedef struct {
    void *srcArray;
    cudaPos srcPos;
    cudaPitchedPtr srcPtr;
    void *dstArray;
    cudaPos dstPos;
    cudaPitchedPtr dstPtr;
    cudaExtent extent;
    int kind;
} cudaMemcpy3DParms;

typedef struct {
    char name[256];
    char uuid[16];
    char luid[8];
    unsigned int luidDeviceNodeMask;
    size_t totalGlobalMem, sharedMemPerBlock;
    int regsPerBlock, warpSize;
    size_t memPitch;
    int maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3];
#if RUNTIME < 13
    int clockRate;
#endif
    size_t totalConstMem;
    int major, minor;
    size_t textureAlignment, texturePitchAlignment;
#if RUNTIME < 13
    int deviceOverlap;
#endif
    int multiProcessorCount;
#if RUNTIME < 13
    int kernelExecTimeoutEnabled;
#endif
    int integrated, canMapHostMemory;
#if RUNTIME < 13
    int computeMode;
#endif
    int maxTexture1D, maxTexture1DMipmap;
#if RUNTIME < 13
    int maxTexture1DLinear;
#endif
    int maxTexture2D[2], maxTexture2DMipmap[2], maxTexture2DLinear[3], maxTexture2DGather[2];
    int maxTexture3D[3], maxTexture3DAlt[3], maxTextureCubemap, maxTexture1DLayered[2];
    int maxTexture2DLayered[3], maxTextureCubemapLayered[2], maxSurface1D, maxSurface2D[2];
    int maxSurface3D[3], maxSurface1DLayered[2], maxSurface2DLayered[3], maxSurfaceCubemap;
    int maxSurfaceCubemapLayered[2];
    size_t surfaceAlignment;
    int concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, pciDomainID, tccDriver;
    int asyncEngineCount, unifiedAddressing;
#if RUNTIME < 13
    int memoryClockRate;
#endif
    int memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported, globalL1CacheSupported, localL1CacheSupported;
    size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor, managedMemory, isMultiGpuBoard, multiGpuBoardGroupID;
    int hostNativeAtomicSupported;
#if RUNTIME < 13
    int singleToDoublePrecisionPerfRatio;
#endif
    int pageableMemoryAccess, concurrentManagedAccess, computePreemptionSupported;
    int canUseHostPointerForRegisteredMem, cooperativeLaunch;
#if RUNTIME < 13
    int cooperativeMultiDeviceLaunch;
#endif
    size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables, directManagedMemAccessFromHost;
    int maxBlocksPerMultiProcessor, accessPolicyMaxWindowSize;
    size_t reservedSharedMemPerBlock;
    int hostRegisterSupported, sparseCudaArraySupported, hostRegisterReadOnlySupported;
    int timelineSemaphoreInteropSupported, memoryPoolsSupported, gpuDirectRDMASupported;
    unsigned int gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned int memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported, ipcEventSupported, clusterLaunch;
    int unifiedFunctionPointers;
#if RUNTIME >= 13
    int deviceNumaConfig, deviceNumaId, mpsEnabled, hostNumaId;
    unsigned int gpuPciDeviceID, gpuPciSubsystemID;
    int hostNumaMultinodeIpcSupported;
    int reserved[56];
#else
    int reserved[63];
#endif
} cudaDeviceProp;

#endif
