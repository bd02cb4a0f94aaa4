/* Copies and sets. Device memory has no contents: what is copied to it is dropped, and the first
 * 64 KiB of what is copied from it become zeros. */
#include <string.h>

#include "activity.h"
#include "memory.h"

#define STAGED 65536UL
/* Pageable memory goes through a staging buffer, at about a quarter of the link. */
#define PAGEABLE_SLOWDOWN 4.0

static int on_device(uintptr_t p) {
    enum place place = place_of(p, NULL, NULL, NULL);
    return place == DEVICE || place == MANAGED;
}

enum mode { ASYNC, BLOCKING };

/* Numbers of CUpti_driver_api_trace_cbid; the functions of one direction share the plain one's. */
static uint32_t copy_call(int into, int out_of, enum mode mode) {
    uint32_t blocking = into && out_of ? 280 : into ? 276 : out_of ? 278 : 305;
    return blocking + (mode == ASYNC);
}

static CUresult give(struct call *call, uintptr_t to, uintptr_t from, size_t bytes,
                     struct stream *s, enum mode mode) {
    struct sim_op op = {.kernel = SIM_NONE, .bytes = bytes, .share = 1000, .power = 200,
                        .count = 1};
    int into = on_device(to), out_of = on_device(from);
    const struct sim_config *c;
    uintptr_t host = into ? from : to;
    int pageable = into != out_of && place_of(host, NULL, NULL, NULL) == PAGEABLE;
    CUresult rc;
    if (ready() != OK) return NOT_INITIALIZED;
    if (s == NULL) return INVALID_CONTEXT;
    if (bytes == 0) return OK;
    if (to == 0 || from == 0) return INVALID_VALUE;
    call->about.is_host_pageable = (uint8_t)pageable;
    call->about.is_host_only = (uint8_t)(!into && !out_of);
    c = &sim->state->device[s->ctx->device].config;
    if (is_capturing(s) && mode == BLOCKING) return CAPTURE_UNSUPPORTED;
    if (!into && !out_of) {
        memmove((void *)to, (const void *)from, bytes);
        op.kind = SIM_COPY_OUT;
        op.memory_ns = 1000;
    } else if (into && out_of) {
        op.kind = SIM_COPY_LOCAL;
        op.memory_ns = (uint64_t)(2.0 * (double)bytes / c->memory_bandwidth * 1e9) + 1000;
    } else {
        double rate = c->link_bandwidth / (pageable ? PAGEABLE_SLOWDOWN : 1.0);
        op.kind = into ? SIM_COPY_IN : SIM_COPY_OUT;
        op.memory_ns = (uint64_t)((double)bytes / rate * 1e9) + 1000;
        if (!into) memset((void *)to, 0, bytes < STAGED ? bytes : STAGED);
    }
    rc = submit(s, &op);
    if (rc != OK || is_capturing(s)) return rc;
    /* Blocking copies within the device return at once; pageable ones block even if asynchronous,
     * except small ones to the device. */
    if ((mode == BLOCKING && !(into && out_of)) || (pageable && (out_of || bytes > STAGED))) {
        return wait_stream(s);
    }
    return OK;
}

static CUresult copy(uintptr_t to, uintptr_t from, size_t bytes, struct stream *s, enum mode mode) {
    struct call call;
    call_enter(&call, copy_call(on_device(to), on_device(from), mode));
    return call_leave(&call, give(&call, to, from, bytes, s, mode));
}

static CUresult fill(uintptr_t to, size_t bytes, struct stream *s) {
    struct sim_op op = {.kind = SIM_SET, .kernel = SIM_NONE, .bytes = bytes, .share = 1000,
                        .power = 300, .count = 1};
    if (ready() != OK) return NOT_INITIALIZED;
    if (s == NULL) return INVALID_CONTEXT;
    if (bytes == 0) return OK;
    if (to == 0) return INVALID_VALUE;
    op.memory_ns = (uint64_t)((double)bytes /
                              sim->state->device[s->ctx->device].config.memory_bandwidth * 1e9) +
                   1000;
    return submit(s, &op);
}

static CUresult set(uintptr_t to, size_t bytes, struct stream *s) {
    struct call call;
    call_enter(&call, 249);
    return call_leave(&call, fill(to, bytes, s));
}

/* Each blocking function and its _ptds twin; each asynchronous one and its _ptsz twin. */
#define BLOCK(NAME, TO, FROM)                                                                    \
    API CUresult NAME(TO to, FROM from, size_t n) {                                              \
        return copy((uintptr_t)to, (uintptr_t)from, n, resolve(NULL, 0), BLOCKING);              \
    }                                                                                            \
    API CUresult NAME##_ptds(TO to, FROM from, size_t n) {                                       \
        return copy((uintptr_t)to, (uintptr_t)from, n, resolve(NULL, 1), BLOCKING);              \
    }

#define NONBLOCK(NAME, TO, FROM)                                                                 \
    API CUresult NAME(TO to, FROM from, size_t n, CUstream s) {                                  \
        return copy((uintptr_t)to, (uintptr_t)from, n, resolve(s, 0), ASYNC);                    \
    }                                                                                            \
    API CUresult NAME##_ptsz(TO to, FROM from, size_t n, CUstream s) {                           \
        return copy((uintptr_t)to, (uintptr_t)from, n, resolve(s, 1), ASYNC);                    \
    }

BLOCK(cuMemcpy, CUdeviceptr, CUdeviceptr)
BLOCK(cuMemcpyHtoD_v2, CUdeviceptr, const void *)
BLOCK(cuMemcpyDtoH_v2, void *, CUdeviceptr)
BLOCK(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr)
NONBLOCK(cuMemcpyAsync, CUdeviceptr, CUdeviceptr)
NONBLOCK(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *)
NONBLOCK(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr)
NONBLOCK(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr)

#define PEER(NAME, TAIL, STREAM, MODE, ...)                                                      \
    API CUresult NAME(CUdeviceptr to, CUcontext tc, CUdeviceptr from, CUcontext fc, size_t n     \
                      __VA_ARGS__) {                                                             \
        (void)tc, (void)fc;                                                                      \
        return copy((uintptr_t)to, (uintptr_t)from, n, STREAM, MODE);                            \
    }

PEER(cuMemcpyPeer, , resolve(NULL, 0), BLOCKING)
PEER(cuMemcpyPeer_ptds, , resolve(NULL, 1), BLOCKING)
PEER(cuMemcpyPeerAsync, , resolve(s, 0), ASYNC, , CUstream s)
PEER(cuMemcpyPeerAsync_ptsz, , resolve(s, 1), ASYNC, , CUstream s)

/* Numbers are those of CUmemorytype: 1 host, 2 device, 4 unified. */
static uintptr_t end(int type, const void *host, CUdeviceptr device) {
    return type == 1 ? (uintptr_t)host : (uintptr_t)device;
}

static CUresult copy2d(const CUDA_MEMCPY2D *p, struct stream *s, enum mode mode) {
    if (p == NULL || p->srcMemoryType == 3 || p->dstMemoryType == 3) return INVALID_VALUE;
    return copy(end(p->dstMemoryType, p->dstHost, p->dstDevice),
                end(p->srcMemoryType, p->srcHost, p->srcDevice), p->WidthInBytes * p->Height, s,
                mode);
}

static CUresult copy3d(const CUDA_MEMCPY3D *p, struct stream *s, enum mode mode) {
    if (p == NULL || p->srcMemoryType == 3 || p->dstMemoryType == 3) return INVALID_VALUE;
    return copy(end(p->dstMemoryType, p->dstHost, p->dstDevice),
                end(p->srcMemoryType, p->srcHost, p->srcDevice),
                p->WidthInBytes * p->Height * p->Depth, s, mode);
}

API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p) {
    return copy2d(p, resolve(NULL, 0), BLOCKING);
}

API CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p) {
    return copy2d(p, resolve(NULL, 1), BLOCKING);
}

API CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p) {
    return copy2d(p, resolve(NULL, 0), BLOCKING);
}

API CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p) {
    return copy2d(p, resolve(NULL, 1), BLOCKING);
}

API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream s) {
    return copy2d(p, resolve(s, 0), ASYNC);
}

API CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream s) {
    return copy2d(p, resolve(s, 1), ASYNC);
}

API CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p) {
    return copy3d(p, resolve(NULL, 0), BLOCKING);
}

API CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *p) {
    return copy3d(p, resolve(NULL, 1), BLOCKING);
}

API CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream s) {
    return copy3d(p, resolve(s, 0), ASYNC);
}

API CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *p, CUstream s) {
    return copy3d(p, resolve(s, 1), ASYNC);
}

#define SET(NAME, TYPE, WIDTH)                                                                   \
    API CUresult cuMemset##NAME##_v2(CUdeviceptr to, TYPE v, size_t n) {                         \
        (void)v;                                                                                 \
        return set((uintptr_t)to, n * (WIDTH), resolve(NULL, 0));                                \
    }                                                                                            \
    API CUresult cuMemset##NAME##_v2_ptds(CUdeviceptr to, TYPE v, size_t n) {                    \
        (void)v;                                                                                 \
        return set((uintptr_t)to, n * (WIDTH), resolve(NULL, 1));                                \
    }                                                                                            \
    API CUresult cuMemset##NAME##Async(CUdeviceptr to, TYPE v, size_t n, CUstream s) {           \
        (void)v;                                                                                 \
        return set((uintptr_t)to, n * (WIDTH), resolve(s, 0));                                   \
    }                                                                                            \
    API CUresult cuMemset##NAME##Async_ptsz(CUdeviceptr to, TYPE v, size_t n, CUstream s) {      \
        (void)v;                                                                                 \
        return set((uintptr_t)to, n * (WIDTH), resolve(s, 1));                                   \
    }

SET(D8, unsigned char, 1)
SET(D16, unsigned short, 2)
SET(D32, unsigned int, 4)
