/* Contexts: one primary context a device, and those that are made. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH 16

static struct context primary[SIM_DEVICES];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct context *stack[DEPTH];
static __thread int depth;

struct context *current(void) { return depth > 0 ? stack[depth - 1] : NULL; }

int wait_mode(const struct context *ctx) {
    static int forced = -2;
    if (forced == -2) {
        const char *env = getenv("TRACER_SIM_SYNC");
        forced = env == NULL ? -1
                 : strcmp(env, "spin") == 0 ? 2
                 : strcmp(env, "yield") == 0 ? 1
                                             : 0;
    }
    switch (ctx->flags & 7) {
    case 1: return 2;
    case 2: return 1;
    case 4: return 0;
    default: return forced >= 0 ? forced : (int)sim->state->global.default_wait;
    }
}

/* Gives a context its place on the device, once: the memory it takes and its legacy stream. */
CUresult open_context(struct context *ctx) {
    CUresult rc = OK;
    struct sim_client *c;
    if (ctx->opened) return OK;
    pthread_mutex_lock(&contexts_lock);
    if (!ctx->opened) {
        if (client == SIM_NONE) client = sim_client_open(sim);
        if (client == SIM_NONE) {
            rc = OUT_OF_MEMORY;
        } else {
            c = &sim->state->client[client];
            pthread_mutex_init(&ctx->lock, NULL);
            rc = open_stream(ctx, &ctx->legacy, 0, 0);
            if (rc == OK) {
                atomic_fetch_add(&c->contexts[ctx->device], 1);
                atomic_fetch_add(&c->memory_bytes[ctx->device],
                                 (uint64_t)sim->state->device[ctx->device].config.context_bytes);
                ctx->generation++;
                ctx->opened = 1;
            }
        }
    }
    pthread_mutex_unlock(&contexts_lock);
    return rc;
}

static void close_context(struct context *ctx) {
    struct sim_client *c = &sim->state->client[client];
    if (!ctx->opened) return;
    for (struct stream *s = ctx->streams, *next; s != NULL; s = next) {
        next = s->next;
        sim_stream_close(sim, s->sim);
        if (s != &ctx->legacy) free(s);
    }
    ctx->streams = NULL;
    atomic_fetch_sub(&c->contexts[ctx->device], 1);
    atomic_fetch_sub(&c->memory_bytes[ctx->device],
                     (uint64_t)sim->state->device[ctx->device].config.context_bytes);
    ctx->opened = 0;
}

static CUresult check(CUdevice device) {
    if (ready() != OK) return NOT_INITIALIZED;
    return device >= 0 && device < (int)sim->state->devices ? OK : INVALID_DEVICE;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    CUresult rc = check(device);
    if (rc != OK) return rc;
    primary[device].device = device;
    primary[device].primary = 1;
    rc = open_context(&primary[device]);
    if (rc != OK) return rc;
    primary[device].references++;
    *out = &primary[device];
    return OK;
}

static CUresult release(CUdevice device, int reset) {
    CUresult rc = check(device);
    if (rc != OK) return rc;
    if (primary[device].references == 0 && !reset) return INVALID_CONTEXT;
    if (primary[device].references > 0) primary[device].references--;
    if (reset || primary[device].references == 0) close_context(&primary[device]);
    return OK;
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return release(device, 0); }
API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { return release(device, 0); }
API CUresult cuDevicePrimaryCtxReset(CUdevice device) { return release(device, 1); }
API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) { return release(device, 1); }

static CUresult set_flags(CUdevice device, unsigned int flags) {
    CUresult rc = check(device);
    if (rc == OK) primary[device].flags = flags;
    return rc;
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    return set_flags(device, flags);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    return set_flags(device, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    CUresult rc = check(device);
    if (rc != OK) return rc;
    if (flags != NULL) *flags = primary[device].flags;
    if (active != NULL) *active = primary[device].opened;
    return OK;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice device) {
    struct context *ctx;
    CUresult rc = check(device);
    if (rc != OK) return rc;
    ctx = calloc(1, sizeof *ctx);
    if (ctx == NULL) return OUT_OF_MEMORY;
    ctx->device = device;
    ctx->flags = flags;
    rc = open_context(ctx);
    if (rc != OK) {
        free(ctx);
        return rc;
    }
    if (depth < DEPTH) stack[depth++] = ctx;
    *out = ctx;
    return OK;
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice device) {
    return create(out, flags, device);
}

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int n, unsigned int flags,
                            CUdevice device) {
    (void)affinity, (void)n;
    return create(out, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice device) {
    (void)params;
    return create(out, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext ctx) {
    if (ready() != OK) return NOT_INITIALIZED;
    if (ctx == NULL || ctx->primary) return INVALID_CONTEXT;
    wait_context(ctx);
    close_context(ctx);
    if (current() == ctx) depth--;
    return OK;
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    if (ready() != OK) return NOT_INITIALIZED;
    if (depth >= DEPTH) return INVALID_VALUE;
    stack[depth++] = ctx;
    return OK;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *out) {
    if (ready() != OK) return NOT_INITIALIZED;
    if (depth == 0) return INVALID_CONTEXT;
    depth--;
    if (out != NULL) *out = stack[depth];
    return OK;
}

API CUresult cuCtxSetCurrent(CUcontext ctx) {
    if (ready() != OK) return NOT_INITIALIZED;
    if (depth == 0) depth = 1;
    stack[depth - 1] = ctx;
    if (ctx == NULL) depth--;
    return OK;
}

API CUresult cuCtxGetCurrent(CUcontext *out) {
    if (ready() != OK) return NOT_INITIALIZED;
    *out = current();
    return OK;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    struct context *ctx = current();
    if (ready() != OK) return NOT_INITIALIZED;
    if (ctx == NULL) return INVALID_CONTEXT;
    *device = ctx->device;
    return OK;
}

API CUresult cuCtxGetFlags(unsigned int *flags) {
    struct context *ctx = current();
    if (ctx == NULL) return INVALID_CONTEXT;
    *flags = ctx->flags;
    return OK;
}

API CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int *version) {
    if (ctx == NULL) return INVALID_CONTEXT;
    *version = 3020;
    return OK;
}

API CUresult cuCtxSynchronize(void) {
    struct context *ctx = current();
    if (ready() != OK) return NOT_INITIALIZED;
    return ctx == NULL ? INVALID_CONTEXT : wait_context(ctx);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    if (current() == NULL) return INVALID_CONTEXT;
    if (least != NULL) *least = 0;
    if (greatest != NULL) *greatest = -5;
    return OK;
}

API CUresult cuCtxGetLimit(size_t *value, int limit) {
    if (current() == NULL) return INVALID_CONTEXT;
    *value = limit == 0 ? 1024 : limit == 1 ? 7 << 20 : 8 << 20;
    return OK;
}

API CUresult cuCtxSetLimit(int limit, size_t value) {
    (void)limit, (void)value;
    return current() == NULL ? INVALID_CONTEXT : OK;
}

API CUresult cuCtxSetCacheConfig(int config) {
    (void)config;
    return current() == NULL ? INVALID_CONTEXT : OK;
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    (void)flags;
    return current() == NULL || peer == NULL ? INVALID_CONTEXT : OK;
}
