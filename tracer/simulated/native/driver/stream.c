/* Streams and events: submission with the order that the legacy stream imposes, and waiting. */
#include "activity.h"

#include <stdlib.h>
#include <string.h>

struct thread_stream {
    struct context *ctx;
    unsigned int generation;
    struct stream *stream;
};

static __thread struct thread_stream of_thread[SIM_DEVICES];

CUresult open_stream(struct context *ctx, struct stream *s, unsigned int flags, int priority) {
    static _Atomic unsigned long long ids = 1;
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->flags = flags;
    s->priority = priority;
    s->id = atomic_fetch_add(&ids, 1);
    s->sim = sim_stream_open(sim, client, (uint32_t)ctx->device);
    if (s->sim == SIM_NONE) return OUT_OF_MEMORY;
    s->generation = sim->state->stream[s->sim].generation;
    atomic_store(&s->last, atomic_load(&sim->state->stream[s->sim].tail));
    s->next = ctx->streams;
    ctx->streams = s;
    return OK;
}

static CUresult new_stream(struct context *ctx, struct stream **out, unsigned int flags,
                           int priority) {
    struct stream *s = malloc(sizeof *s);
    CUresult rc;
    if (s == NULL) return OUT_OF_MEMORY;
    pthread_mutex_lock(&ctx->lock);
    rc = open_stream(ctx, s, flags, priority);
    pthread_mutex_unlock(&ctx->lock);
    if (rc == OK) *out = s;
    else free(s);
    return rc;
}

/* The stream a handle stands for on this thread; NULL without a context. */
struct stream *resolve(CUstream handle, int per_thread) {
    struct context *ctx = current();
    uintptr_t value = (uintptr_t)handle;
    if (value > 2) return handle;
    if (ctx == NULL || !ctx->opened) return NULL;
    if (value == 1 || (value == 0 && !per_thread)) return &ctx->legacy;
    if (of_thread[ctx->device].ctx != ctx ||
        of_thread[ctx->device].generation != ctx->generation) {
        struct stream *s;
        if (new_stream(ctx, &s, 0, 0) != OK) return NULL;
        of_thread[ctx->device] = (struct thread_stream){ctx, ctx->generation, s};
    }
    return of_thread[ctx->device].stream;
}

static uint64_t push(struct stream *s, const struct sim_op *op) {
    const struct sim_hooks *hooks = sim_hooks();
    uint64_t begin = 0, seq;
    if (hooks != NULL && sim_is_full(sim, s->sim)) begin = sim_clock_ns();
    seq = sim_submit(sim, s->sim, op, wait_mode(s->ctx));
    if (begin != 0) hooks->queue_full(begin, sim_clock_ns());
    atomic_store(&s->last, seq);
    return seq;
}

static int pending(const struct stream *s) {
    return atomic_load(&sim->state->stream[s->sim].head) < atomic_load(&s->last);
}

static void push_wait(struct stream *s, const struct stream *other) {
    struct sim_op op = {.kind = SIM_WAIT, .kernel = SIM_NONE, .arg = atomic_load(&other->last),
                        .arg2 = other->sim, .arg3 = other->generation};
    push(s, &op);
}

/* The legacy stream waits for all blocking streams and they for it. With the context's lock. */
static void order_legacy(struct stream *s) {
    struct context *ctx = s->ctx;
    if (s == &ctx->legacy) {
        for (struct stream *o = ctx->streams; o != NULL; o = o->next) {
            if (o != s && !(o->flags & 1) && o->capture == NULL && pending(o)) push_wait(s, o);
        }
    } else if (!(s->flags & 1) && atomic_load(&ctx->legacy.last) > s->legacy_waited) {
        s->legacy_waited = atomic_load(&ctx->legacy.last);
        if (pending(&ctx->legacy)) push_wait(s, &ctx->legacy);
    }
}

/* Appends an operation to a stream, or a node to the graph it captures. */
CUresult submit(struct stream *s, struct sim_op *op) {
    struct context *ctx;
    if (s == NULL) return INVALID_CONTEXT;
    if (is_capturing(s)) return capture_op(s, op);
    ctx = s->ctx;
    if (sim->state->device[ctx->device].config.lost != 0) return UNKNOWN;
    pthread_mutex_lock(&ctx->lock);
    order_legacy(s);
    call_submits(s, op);
    push(s, op);
    pthread_mutex_unlock(&ctx->lock);
    return OK;
}

CUresult wait_stream(struct stream *s) {
    uint64_t begin = sim_clock_ns();
    if (s == NULL) return INVALID_CONTEXT;
    if (is_capturing(s)) return CAPTURE_UNSUPPORTED;
    sim_wait(sim, s->sim, atomic_load(&s->last), wait_mode(s->ctx));
    call_waited(SIM_WAIT_STREAM, s->ctx, s, begin);
    return OK;
}

CUresult wait_context(struct context *ctx) {
    uint64_t begin = sim_clock_ns();
    for (struct stream *s = ctx->streams; s != NULL; s = s->next) {
        if (s->capture != NULL) return CAPTURE_UNSUPPORTED;
        sim_wait(sim, s->sim, atomic_load(&s->last), wait_mode(ctx));
    }
    call_waited(SIM_WAIT_CONTEXT, ctx, NULL, begin);
    return OK;
}

API CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    struct context *ctx = current();
    if (ready() != OK) return NOT_INITIALIZED;
    return ctx == NULL ? INVALID_CONTEXT : new_stream(ctx, out, flags, 0);
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    struct context *ctx = current();
    if (ready() != OK) return NOT_INITIALIZED;
    return ctx == NULL ? INVALID_CONTEXT : new_stream(ctx, out, flags, priority);
}

API CUresult cuStreamDestroy_v2(CUstream s) {
    if ((uintptr_t)s <= 2) return INVALID_HANDLE;
    pthread_mutex_lock(&s->ctx->lock);
    for (struct stream **p = &s->ctx->streams; *p != NULL; p = &(*p)->next) {
        if (*p == s) {
            *p = s->next;
            break;
        }
    }
    pthread_mutex_unlock(&s->ctx->lock);
    sim_stream_close(sim, s->sim);
    free(s);
    return OK;
}

static CUresult query(struct stream *s) {
    if (s == NULL) return INVALID_CONTEXT;
    if (is_capturing(s)) return CAPTURE_UNSUPPORTED;
    return sim_done(sim, s->sim, atomic_load(&s->last)) ? OK : NOT_READY;
}

static CUresult wait_event(struct stream *s, struct event *e) {
    struct sim_op op = {.kind = SIM_WAIT, .kernel = SIM_NONE};
    if (s == NULL || e == NULL) return INVALID_HANDLE;
    if (e->capture != NULL) return capture_join(s, e->capture);
    if (is_capturing(s) || atomic_load(&e->recorded) == 0) return OK;
    if (e->stream == s->sim && e->stream_generation == s->generation) return OK;
    op.arg = e->stream_seq;
    op.arg2 = e->stream;
    op.arg3 = e->stream_generation;
    return submit(s, &op);
}

static CUresult record(struct event *e, struct stream *s) {
    struct sim_op op = {.kind = SIM_RECORD, .kernel = SIM_NONE};
    if (s == NULL || e == NULL) return INVALID_HANDLE;
    e->capture = is_capturing(s) ? s->capture : NULL;
    if (e->capture != NULL) return OK;
    pthread_mutex_lock(&s->ctx->lock);
    order_legacy(s);
    op.arg = atomic_load(&e->recorded) + 1;
    op.arg2 = e->sim;
    op.arg3 = e->generation;
    e->stream = s->sim;
    e->stream_generation = s->generation;
    e->stream_seq = push(s, &op);
    atomic_store(&e->recorded, op.arg);
    pthread_mutex_unlock(&s->ctx->lock);
    return OK;
}

#define TWIN(NAME, IMPL, PARAMS, ...)                                                            \
    API CUresult NAME PARAMS { return ready() != OK ? NOT_INITIALIZED : IMPL(__VA_ARGS__); }

TWIN(cuStreamSynchronize, wait_stream, (CUstream s), resolve(s, 0))
TWIN(cuStreamSynchronize_ptsz, wait_stream, (CUstream s), resolve(s, 1))
TWIN(cuStreamQuery, query, (CUstream s), resolve(s, 0))
TWIN(cuStreamQuery_ptsz, query, (CUstream s), resolve(s, 1))
TWIN(cuStreamWaitEvent, wait_event, (CUstream s, CUevent e, unsigned int f), resolve(s, 0),
     ((void)f, e))
TWIN(cuStreamWaitEvent_ptsz, wait_event, (CUstream s, CUevent e, unsigned int f), resolve(s, 1),
     ((void)f, e))
TWIN(cuEventRecord, record, (CUevent e, CUstream s), e, resolve(s, 0))
TWIN(cuEventRecord_ptsz, record, (CUevent e, CUstream s), e, resolve(s, 1))
TWIN(cuEventRecordWithFlags, record, (CUevent e, CUstream s, unsigned int f), ((void)f, e),
     resolve(s, 0))
TWIN(cuEventRecordWithFlags_ptsz, record, (CUevent e, CUstream s, unsigned int f), ((void)f, e),
     resolve(s, 1))

static CUresult get(const struct stream *s, int what, void *out) {
    if (s == NULL) return INVALID_CONTEXT;
    switch (what) {
    case 0: *(unsigned int *)out = s->flags; break;
    case 1: *(int *)out = s->priority; break;
    case 2: *(CUcontext *)out = s->ctx; break;
    case 3: *(unsigned long long *)out = s->id; break;
    default: *(CUdevice *)out = s->ctx->device;
    }
    return OK;
}

TWIN(cuStreamGetFlags, get, (CUstream s, unsigned int *out), resolve(s, 0), 0, out)
TWIN(cuStreamGetFlags_ptsz, get, (CUstream s, unsigned int *out), resolve(s, 1), 0, out)
TWIN(cuStreamGetPriority, get, (CUstream s, int *out), resolve(s, 0), 1, out)
TWIN(cuStreamGetPriority_ptsz, get, (CUstream s, int *out), resolve(s, 1), 1, out)
TWIN(cuStreamGetCtx, get, (CUstream s, CUcontext *out), resolve(s, 0), 2, out)
TWIN(cuStreamGetCtx_ptsz, get, (CUstream s, CUcontext *out), resolve(s, 1), 2, out)
TWIN(cuStreamGetId, get, (CUstream s, unsigned long long *out), resolve(s, 0), 3, out)
TWIN(cuStreamGetId_ptsz, get, (CUstream s, unsigned long long *out), resolve(s, 1), 3, out)
TWIN(cuStreamGetDevice, get, (CUstream s, CUdevice *out), resolve(s, 0), 4, out)
TWIN(cuStreamGetDevice_ptsz, get, (CUstream s, CUdevice *out), resolve(s, 1), 4, out)

API CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    struct context *ctx = current();
    struct event *e;
    if (ready() != OK) return NOT_INITIALIZED;
    if (ctx == NULL) return INVALID_CONTEXT;
    e = calloc(1, sizeof *e);
    if (e == NULL) return OUT_OF_MEMORY;
    e->ctx = ctx;
    e->flags = flags;
    e->sim = sim_event_open(sim, client);
    if (e->sim == SIM_NONE) {
        free(e);
        return OUT_OF_MEMORY;
    }
    e->generation = sim->state->event[e->sim].generation;
    *out = e;
    return OK;
}

API CUresult cuEventDestroy_v2(CUevent e) {
    if (e == NULL) return INVALID_HANDLE;
    sim_event_close(sim, e->sim);
    free(e);
    return OK;
}

API CUresult cuEventQuery(CUevent e) {
    if (e == NULL) return INVALID_HANDLE;
    if (e->capture != NULL) return CAPTURE_UNSUPPORTED;
    if (atomic_load(&e->recorded) == 0) return OK;
    return sim_done(sim, e->stream, e->stream_seq) ? OK : NOT_READY;
}

API CUresult cuEventSynchronize(CUevent e) {
    uint64_t begin = sim_clock_ns();
    if (e == NULL) return INVALID_HANDLE;
    if (e->capture != NULL) return CAPTURE_UNSUPPORTED;
    if (atomic_load(&e->recorded) == 0) return OK;
    sim_wait(sim, e->stream, e->stream_seq, (e->flags & 1) ? 0 : wait_mode(e->ctx));
    call_waited(SIM_WAIT_EVENT, e->ctx, NULL, begin);
    return OK;
}

static CUresult elapsed(float *ms, CUevent a, CUevent b) {
    uint64_t t0, t1;
    CUresult rc;
    if (a == NULL || b == NULL || ((a->flags | b->flags) & 2)) return INVALID_HANDLE;
    if (atomic_load(&a->recorded) == 0 || atomic_load(&b->recorded) == 0) return INVALID_HANDLE;
    if ((rc = cuEventQuery(a)) != OK || (rc = cuEventQuery(b)) != OK) return rc;
    t0 = atomic_load(&sim->state->event[a->sim].done_ns);
    t1 = atomic_load(&sim->state->event[b->sim].done_ns);
    *ms = (float)((double)(int64_t)(t1 - t0) / 1e6);
    return OK;
}

API CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b) { return elapsed(ms, a, b); }
API CUresult cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b) { return elapsed(ms, a, b); }
