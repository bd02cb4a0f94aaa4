/* Stream capture and graphs. A graph is the list of what was captured, in the order of capture; its
 * replay runs it as one operation, cut only by collectives. */
#include "activity.h"

#include <stdlib.h>
#include <string.h>

static _Atomic unsigned long long capture_ids = 1;
static _Atomic uint32_t graph_ids = 1;
static __thread int thread_mode;

int is_capturing(const struct stream *s) { return s->capture != NULL; }

static CUresult append(struct graph *g, const struct sim_op *op) {
    if (g->n == g->room) {
        size_t room = g->room == 0 ? 64 : g->room * 2;
        struct sim_op *ops = realloc(g->ops, room * sizeof *ops);
        if (ops == NULL) return OUT_OF_MEMORY;
        g->ops = ops;
        g->room = room;
    }
    g->ops[g->n++] = *op;
    return OK;
}

CUresult capture_op(struct stream *s, const struct sim_op *op) {
    CUresult rc = OK;
    if (s->capture->invalid) return CAPTURE_INVALIDATED;
    pthread_mutex_lock(&s->ctx->lock);
    if (op->kind != SIM_WAIT && op->kind != SIM_RECORD) rc = append(s->capture->graph, op);
    pthread_mutex_unlock(&s->ctx->lock);
    return rc;
}

/* A stream that waits for an event of a capture becomes part of it. */
CUresult capture_join(struct stream *s, struct capture *c) {
    if (s->capture != NULL && s->capture != c) return CAPTURE_INVALIDATED;
    if (s == &s->ctx->legacy) return CAPTURE_IMPLICIT;
    s->capture = c;
    return OK;
}

static CUresult begin(struct stream *s, int mode) {
    struct capture *c;
    if (ready() != OK) return NOT_INITIALIZED;
    if (s == NULL) return INVALID_CONTEXT;
    if (mode < 0 || mode > 2) return INVALID_VALUE;
    if (s == &s->ctx->legacy) return CAPTURE_UNSUPPORTED;
    if (s->capture != NULL) return INVALID_VALUE;
    c = calloc(1, sizeof *c);
    if (c == NULL || (c->graph = calloc(1, sizeof *c->graph)) == NULL) {
        free(c);
        return OUT_OF_MEMORY;
    }
    c->origin = s;
    c->id = atomic_fetch_add(&capture_ids, 1);
    s->capture = c;
    return OK;
}

static CUresult end(struct stream *s, struct graph **out) {
    struct capture *c;
    CUresult rc = OK;
    if (s == NULL) return INVALID_CONTEXT;
    c = s->capture;
    if (c == NULL) return INVALID_VALUE;
    if (c->origin != s) return CAPTURE_UNMATCHED;
    pthread_mutex_lock(&s->ctx->lock);
    for (struct stream *o = s->ctx->streams; o != NULL; o = o->next) {
        if (o->capture == c) o->capture = NULL;
    }
    pthread_mutex_unlock(&s->ctx->lock);
    if (c->invalid) rc = CAPTURE_INVALIDATED;
    if (rc == OK && out != NULL) {
        *out = c->graph;
    } else {
        free(c->graph->ops);
        free(c->graph);
    }
    /* Events recorded in the capture may still name it: what they point to is kept. */
    c->graph = NULL;
    return rc;
}

static CUresult info(struct stream *s, int *status, unsigned long long *id, struct graph **graph,
                     const void **dependencies, size_t *n) {
    if (s == NULL) return INVALID_CONTEXT;
    if (status == NULL) return INVALID_VALUE;
    *status = s->capture == NULL ? 0 : s->capture->invalid ? 2 : 1;
    if (s->capture != NULL && id != NULL) *id = s->capture->id;
    if (s->capture != NULL && graph != NULL) *graph = s->capture->graph;
    if (dependencies != NULL) *dependencies = NULL;
    if (n != NULL) *n = 0;
    return OK;
}

static void add(struct sim_op *part, const struct sim_op *op) {
    double a = (double)(part->compute_ns + part->memory_ns), share, power;
    int by_memory = op->memory_ns > op->compute_ns;
    double b = (double)(by_memory ? op->memory_ns : op->compute_ns);
    double whole = a + b > 0 ? a + b : 1;
    share = (part->share * a + op->share * b) / whole;
    power = (part->power * a + op->power * b) / whole;
    part->share = (uint16_t)(share < 1 ? 1 : share);
    part->power = (uint16_t)power;
    part->tensor = (uint8_t)((part->tensor * a + op->tensor * b) / whole);
    if (by_memory) part->memory_ns += op->memory_ns;
    else part->compute_ns += op->compute_ns;
    part->bytes += op->bytes;
    part->flags |= op->flags;
    part->count++;
}

static CUresult compile(const struct graph *g, struct graph_exec *e) {
    e->parts = calloc(g->n + 1, sizeof *e->parts);
    if (e->parts == NULL) return OUT_OF_MEMORY;
    for (size_t i = 0; i < g->n; i++) {
        const struct sim_op *op = &g->ops[i];
        if (op->kind == SIM_COLLECTIVE) {
            e->parts[e->n++] = *op;
            continue;
        }
        if (e->n == 0 || e->parts[e->n - 1].kind != SIM_GRAPH) {
            e->parts[e->n++] = (struct sim_op){.kind = SIM_GRAPH, .kernel = SIM_NONE};
        }
        add(&e->parts[e->n - 1], op);
    }
    return OK;
}

static CUresult instantiate(struct graph_exec **out, struct graph *g) {
    struct graph_exec *e;
    CUresult rc;
    if (out == NULL || g == NULL) return INVALID_VALUE;
    e = calloc(1, sizeof *e);
    if (e == NULL) return OUT_OF_MEMORY;
    e->id = atomic_fetch_add(&graph_ids, 1);
    rc = compile(g, e);
    if (rc == OK) *out = e;
    else free(e);
    return rc;
}

static CUresult replay(struct call *call, struct graph_exec *e, struct stream *s) {
    struct sim_cost cost;
    CUresult rc = OK;
    if (ready() != OK) return NOT_INITIALIZED;
    if (e == NULL) return INVALID_VALUE;
    if (s == NULL) return INVALID_CONTEXT;
    call->about.graph = e->id;
    call->about.n_parts = (uint32_t)e->n;
    sim_burn_ns((uint64_t)sim->state->global.launch_cpu_ns);
    if (tracer_sim_take_next(&cost)) {
        struct sim_op op = {.kind = SIM_GRAPH, .kernel = SIM_NONE, .share = (uint16_t)cost.share,
                            .power = (uint16_t)cost.power, .tensor = (uint8_t)cost.tensor,
                            .flags = (uint8_t)cost.flags};
        /* The two parts of a graph follow each other; the cost of a launch is their larger one. */
        if (cost.memory_ns > cost.compute_ns) op.memory_ns = cost.memory_ns;
        else op.compute_ns = cost.compute_ns;
        for (size_t i = 0; i < e->n; i++) op.count += e->parts[i].count;
        call->about.n_parts = 1;
        rc = submit(s, &op);
    } else {
        e->replays++;
        for (size_t i = 0; i < e->n && rc == OK; i++) {
            struct sim_op op = e->parts[i];
            if (op.kind == SIM_COLLECTIVE) op.arg += e->replays * 0x9e3779b97f4a7c15ULL;
            rc = submit(s, &op);
        }
    }
    if (rc == OK && !is_capturing(s)) {
        atomic_fetch_add_explicit(&sim->state->client[client].launches, 1, memory_order_relaxed);
    }
    return rc;
}

static CUresult launch(uint32_t cbid, struct graph_exec *e, struct stream *s) {
    struct call call;
    call_enter(&call, cbid);
    return call_leave(&call, replay(&call, e, s));
}

API CUresult cuStreamBeginCapture(CUstream s) { return begin(resolve(s, 0), 0); }
API CUresult cuStreamBeginCapture_ptsz(CUstream s) { return begin(resolve(s, 1), 0); }
API CUresult cuStreamBeginCapture_v2(CUstream s, int mode) { return begin(resolve(s, 0), mode); }
API CUresult cuStreamBeginCapture_v2_ptsz(CUstream s, int m) { return begin(resolve(s, 1), m); }
API CUresult cuStreamEndCapture(CUstream s, CUgraph *g) { return end(resolve(s, 0), g); }
API CUresult cuStreamEndCapture_ptsz(CUstream s, CUgraph *g) { return end(resolve(s, 1), g); }

API CUresult cuStreamIsCapturing(CUstream s, int *status) {
    return info(resolve(s, 0), status, NULL, NULL, NULL, NULL);
}

API CUresult cuStreamIsCapturing_ptsz(CUstream s, int *status) {
    return info(resolve(s, 1), status, NULL, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo(CUstream s, int *status, unsigned long long *id) {
    return info(resolve(s, 0), status, id, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo_ptsz(CUstream s, int *status, unsigned long long *id) {
    return info(resolve(s, 1), status, id, NULL, NULL, NULL);
}

API CUresult cuStreamGetCaptureInfo_v2(CUstream s, int *status, unsigned long long *id, CUgraph *g,
                                       const void **deps, size_t *n) {
    return info(resolve(s, 0), status, id, g, deps, n);
}

API CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream s, int *status, unsigned long long *id,
                                            CUgraph *g, const void **deps, size_t *n) {
    return info(resolve(s, 1), status, id, g, deps, n);
}

API CUresult cuStreamGetCaptureInfo_v3(CUstream s, int *status, unsigned long long *id, CUgraph *g,
                                       const void **deps, const void **edges, size_t *n) {
    if (edges != NULL) *edges = NULL;
    return info(resolve(s, 0), status, id, g, deps, n);
}

API CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream s, int *status, unsigned long long *id,
                                            CUgraph *g, const void **deps, const void **edges,
                                            size_t *n) {
    if (edges != NULL) *edges = NULL;
    return info(resolve(s, 1), status, id, g, deps, n);
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    int former = thread_mode;
    if (mode == NULL) return INVALID_VALUE;
    thread_mode = *mode;
    *mode = former;
    return OK;
}

API CUresult cuGraphCreate(CUgraph *out, unsigned int flags) {
    if (out == NULL || flags != 0) return INVALID_VALUE;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? OUT_OF_MEMORY : OK;
}

API CUresult cuGraphDestroy(CUgraph g) {
    if (g == NULL) return INVALID_VALUE;
    free(g->ops);
    free(g);
    return OK;
}

API CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n) {
    if (g == NULL || n == NULL) return INVALID_VALUE;
    for (size_t i = 0; nodes != NULL && i < *n; i++) nodes[i] = i < g->n ? &g->ops[i] : NULL;
    if (nodes == NULL || *n > g->n) *n = g->n;
    return OK;
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *node, char *log,
                                   size_t size) {
    (void)node, (void)log, (void)size;
    return instantiate(out, g);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
    (void)flags;
    return instantiate(out, g);
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, void *params) {
    (void)params;
    return instantiate(out, g);
}

API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, void *params) {
    (void)params;
    return instantiate(out, g);
}

API CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, void *result) {
    struct graph_exec fresh = {0};
    CUresult rc;
    if (e == NULL || g == NULL) return INVALID_VALUE;
    rc = compile(g, &fresh);
    if (rc != OK) return rc;
    free(e->parts);
    e->parts = fresh.parts;
    e->n = fresh.n;
    if (result != NULL) *(int *)result = 0;
    return OK;
}

API CUresult cuGraphExecDestroy(CUgraphExec e) {
    if (e == NULL) return INVALID_VALUE;
    free(e->parts);
    free(e);
    return OK;
}

API CUresult cuGraphUpload(CUgraphExec e, CUstream s) {
    (void)s;
    return e == NULL ? INVALID_VALUE : OK;
}

API CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream s) {
    (void)s;
    return e == NULL ? INVALID_VALUE : OK;
}

API CUresult cuGraphLaunch(CUgraphExec e, CUstream s) { return launch(514, e, resolve(s, 0)); }
API CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream s) { return launch(515, e, resolve(s, 1)); }
