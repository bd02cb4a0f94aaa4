/* Memory, copies and sets. */
#include "runtime.h"

#include <string.h>

static cudaError_t allocate(const struct driver *d, void **out, size_t size) {
    CUdeviceptr p = 0;
    cudaError_t rc;
    if (out == NULL) return 1;
    *out = NULL;
    if (size == 0) return 0;
    rc = d->cuMemAlloc(&p, size);
    *out = (void *)(uintptr_t)p;
    return rc;
}

static cudaError_t allocate_managed(const struct driver *d, void **out, size_t size,
                                    unsigned int flags) {
    CUdeviceptr p = 0;
    cudaError_t rc = out == NULL ? 1 : d->cuMemAllocManaged(&p, size, flags);
    if (rc == 0) *out = (void *)(uintptr_t)p;
    return rc;
}

static cudaError_t allocate_pitch(const struct driver *d, void **out, size_t *pitch, size_t width,
                                  size_t height) {
    CUdeviceptr p = 0;
    cudaError_t rc = out == NULL ? 1 : d->cuMemAllocPitch(&p, pitch, width, height, 4);
    if (rc == 0) *out = (void *)(uintptr_t)p;
    return rc;
}

static cudaError_t allocate_async(const struct driver *d, void **out, size_t size, cudaStream_t s) {
    CUdeviceptr p = 0;
    cudaError_t rc = out == NULL ? 1 : d->cuMemAllocAsync(&p, size, s);
    if (rc == 0) *out = (void *)(uintptr_t)p;
    return rc;
}

static cudaError_t allocate_pool(const struct driver *d, void **out, size_t size,
                                 cudaMemPool_t pool, cudaStream_t s) {
    CUdeviceptr p = 0;
    cudaError_t rc = out == NULL ? 1 : d->cuMemAllocFromPoolAsync(&p, size, pool, s);
    if (rc == 0) *out = (void *)(uintptr_t)p;
    return rc;
}

static cudaError_t release(const struct driver *d, void *p) {
    return d->cuMemFree((CUdeviceptr)(uintptr_t)p);
}

static cudaError_t release_async(const struct driver *d, void *p, cudaStream_t s) {
    return d->cuMemFreeAsync((CUdeviceptr)(uintptr_t)p, s);
}

static cudaError_t allocate_host(const struct driver *d, void **out, size_t size,
                                 unsigned int flags) {
    return d->cuMemHostAlloc(out, size, flags);
}

static cudaError_t release_host(const struct driver *d, void *p) { return d->cuMemFreeHost(p); }

static cudaError_t pin(const struct driver *d, void *p, size_t size, unsigned int flags) {
    return d->cuMemHostRegister(p, size, flags);
}

static cudaError_t unpin(const struct driver *d, void *p) { return d->cuMemHostUnregister(p); }

static cudaError_t device_pointer(const struct driver *d, void **out, void *p, unsigned int flags) {
    CUdeviceptr q = 0;
    cudaError_t rc = d->cuMemHostGetDevicePointer(&q, p, flags);
    *out = (void *)(uintptr_t)q;
    return rc;
}

static cudaError_t memory_info(const struct driver *d, size_t *available, size_t *total) {
    return d->cuMemGetInfo(available, total);
}

static cudaError_t pointer_attributes(const struct driver *d, cudaPointerAttributes *out,
                                      const void *p) {
    unsigned int type = 0, managed = 0;
    memset(out, 0, sizeof *out);
    if (d->cuPointerGetAttribute(&type, 2, (CUdeviceptr)(uintptr_t)p) != 0) {
        out->device = -2; /* not registered */
        return 0;
    }
    d->cuPointerGetAttribute(&managed, 8, (CUdeviceptr)(uintptr_t)p);
    d->cuPointerGetAttribute(&out->device, 9, (CUdeviceptr)(uintptr_t)p);
    out->type = managed ? 3 : (int)type;
    out->devicePointer = (void *)(uintptr_t)p;
    out->hostPointer = type == 2 && !managed ? NULL : (void *)(uintptr_t)p;
    return 0;
}

ONE(cudaMalloc, 0, allocate, (void **p, size_t n), p, n)
ONE(cudaMallocManaged, 0, allocate_managed, (void **p, size_t n, unsigned int f), p, n, f)
ONE(cudaMallocPitch, 0, allocate_pitch, (void **p, size_t *pitch, size_t w, size_t h), p, pitch, w,
    h)
PTSZ(cudaMallocAsync, allocate_async, (void **p, size_t n, cudaStream_t s), p, n, s)
PTSZ(cudaMallocFromPoolAsync, allocate_pool,
     (void **p, size_t n, cudaMemPool_t pool, cudaStream_t s), p, n, pool, s)
ONE(cudaFree, 0, release, (void *p), p)
PTSZ(cudaFreeAsync, release_async, (void *p, cudaStream_t s), p, s)
ONE(cudaMallocHost, 0, allocate_host, (void **p, size_t n), p, n, 0)
ONE(cudaHostAlloc, 0, allocate_host, (void **p, size_t n, unsigned int f), p, n, f)
ONE(cudaFreeHost, 0, release_host, (void *p), p)
ONE(cudaHostRegister, 0, pin, (void *p, size_t n, unsigned int f), p, n, f)
ONE(cudaHostUnregister, 0, unpin, (void *p), p)
ONE(cudaHostGetDevicePointer, 0, device_pointer, (void **out, void *p, unsigned int f), out, p, f)
ONE(cudaMemGetInfo, 0, memory_info, (size_t *available, size_t *total), available, total)
ONE(cudaPointerGetAttributes, 0, pointer_attributes, (cudaPointerAttributes *out, const void *p),
    out, p)

static cudaError_t pool_set(const struct driver *d, cudaMemPool_t p, int a, void *v) {
    return d->cuMemPoolSetAttribute(p, a, v);
}

static cudaError_t pool_get(const struct driver *d, cudaMemPool_t p, int a, void *v) {
    return d->cuMemPoolGetAttribute(p, a, v);
}

static cudaError_t pool_trim(const struct driver *d, cudaMemPool_t p, size_t keep_bytes) {
    return d->cuMemPoolTrimTo(p, keep_bytes);
}

ONE(cudaMemPoolSetAttribute, 0, pool_set, (cudaMemPool_t p, int a, void *v), p, a, v)
ONE(cudaMemPoolGetAttribute, 0, pool_get, (cudaMemPool_t p, int a, void *v), p, a, v)
ONE(cudaMemPoolTrimTo, 0, pool_trim, (cudaMemPool_t p, size_t n), p, n)

/* Kinds are those of cudaMemcpyKind: host to host 0, to device 1, from device 2, within 3, any 4. */
static cudaError_t copy(const struct driver *d, void *to, const void *from, size_t n, int kind) {
    CUdeviceptr t = (CUdeviceptr)(uintptr_t)to, f = (CUdeviceptr)(uintptr_t)from;
    switch (kind) {
    case 1: return d->cuMemcpyHtoD(t, from, n);
    case 2: return d->cuMemcpyDtoH(to, f, n);
    case 3: return d->cuMemcpyDtoD(t, f, n);
    case 0: case 4: return d->cuMemcpy(t, f, n);
    default: return 21; /* invalid direction */
    }
}

static cudaError_t copy_async(const struct driver *d, void *to, const void *from, size_t n,
                              int kind, cudaStream_t s) {
    CUdeviceptr t = (CUdeviceptr)(uintptr_t)to, f = (CUdeviceptr)(uintptr_t)from;
    switch (kind) {
    case 1: return d->cuMemcpyHtoDAsync(t, from, n, s);
    case 2: return d->cuMemcpyDtoHAsync(to, f, n, s);
    case 3: return d->cuMemcpyDtoDAsync(t, f, n, s);
    case 0: case 4: return d->cuMemcpyAsync(t, f, n, s);
    default: return 21;
    }
}

PTDS(cudaMemcpy, copy, (void *to, const void *from, size_t n, int kind), to, from, n, kind)
PTSZ(cudaMemcpyAsync, copy_async,
     (void *to, const void *from, size_t n, int kind, cudaStream_t s), to, from, n, kind, s)
PTDS(cudaMemcpy2D, copy,
     (void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h, int kind),
     ((void)tp, (void)fp, to), from, w * h, kind)
PTSZ(cudaMemcpy2DAsync, copy_async,
     (void *to, size_t tp, const void *from, size_t fp, size_t w, size_t h, int kind,
      cudaStream_t s),
     ((void)tp, (void)fp, to), from, w * h, kind, s)
ONE(cudaMemcpyPeer, 0, copy, (void *to, int td, const void *from, int fd, size_t n),
    ((void)td, (void)fd, to), from, n, 3)
PTSZ(cudaMemcpyPeerAsync, copy_async,
     (void *to, int td, const void *from, int fd, size_t n, cudaStream_t s),
     ((void)td, (void)fd, to), from, n, 3, s)

static cudaError_t copy3d(const struct driver *d, const cudaMemcpy3DParms *p, cudaStream_t s,
                          int async) {
    size_t n;
    if (p == NULL || p->srcArray != NULL || p->dstArray != NULL) return 1;
    n = p->extent.width * p->extent.height * p->extent.depth;
    return async ? copy_async(d, p->dstPtr.ptr, p->srcPtr.ptr, n, p->kind, s)
                 : copy(d, p->dstPtr.ptr, p->srcPtr.ptr, n, p->kind);
}

PTDS(cudaMemcpy3D, copy3d, (const cudaMemcpy3DParms *p), p, NULL, 0)
PTSZ(cudaMemcpy3DAsync, copy3d, (const cudaMemcpy3DParms *p, cudaStream_t s), p, s, 1)

static cudaError_t set(const struct driver *d, void *to, int value, size_t n) {
    return d->cuMemsetD8((CUdeviceptr)(uintptr_t)to, (unsigned char)value, n);
}

static cudaError_t set_async(const struct driver *d, void *to, int value, size_t n,
                             cudaStream_t s) {
    return d->cuMemsetD8Async((CUdeviceptr)(uintptr_t)to, (unsigned char)value, n, s);
}

PTDS(cudaMemset, set, (void *to, int value, size_t n), to, value, n)
PTSZ(cudaMemsetAsync, set_async, (void *to, int value, size_t n, cudaStream_t s), to, value, n, s)
PTDS(cudaMemset2D, set, (void *to, size_t pitch, int value, size_t w, size_t h),
     ((void)pitch, to), value, w * h)
PTSZ(cudaMemset2DAsync, set_async,
     (void *to, size_t pitch, int value, size_t w, size_t h, cudaStream_t s),
     ((void)pitch, to), value, w * h, s)
