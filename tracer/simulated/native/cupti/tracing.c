/* From the calls of the simulated libcuda to records. */
#define _GNU_SOURCE
#include "tracing.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../core/hooks.h"
#include "records.h"

struct tracing tracing;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t correlations, tags;
static void *graph_record_open;

void tracing_lock(void) { pthread_mutex_lock(&lock); }
void tracing_unlock(void) { pthread_mutex_unlock(&lock); }

static uint32_t thread_id(void) {
    return tracing.is_system_thread ? (uint32_t)syscall(SYS_gettid) : (uint32_t)pthread_self();
}

static uint32_t enter(uint32_t cbid) {
    (void)cbid;
    return atomic_fetch_add(&correlations, 1) + 1;
}

#define EXTERNAL_DEPTH 32
static __thread struct {
    uint64_t ids[EXTERNAL_DEPTH];
    uint32_t depth;
} externals[EXTERNAL_KINDS];

int external_push(uint32_t kind, uint64_t id) {
    if (externals[kind].depth == EXTERNAL_DEPTH) return 0;
    externals[kind].ids[externals[kind].depth++] = id;
    return 1;
}

int external_pop(uint32_t kind, uint64_t *last) {
    if (externals[kind].depth == 0) return 0;
    externals[kind].depth--;
    if (last != NULL) *last = externals[kind].ids[externals[kind].depth];
    return 1;
}

/* Before the record of a call comes one for each kind that the thread has a number of. */
static void of_externals(uint32_t correlation) {
    for (uint32_t kind = 0; kind < EXTERNAL_KINDS; kind++) {
        struct external_record *r;
        if (externals[kind].depth == 0 || (r = record_reserve(sizeof *r, 0)) == NULL) continue;
        *r = (struct external_record){.kind = KIND_EXTERNAL_CORRELATION,
                                      .external_kind = kind,
                                      .external = externals[kind].ids[externals[kind].depth - 1],
                                      .correlation = correlation};
    }
}

static void leave(uint32_t cbid, uint32_t correlation, uint64_t entry_ns, uint32_t rc) {
    void (*callback)(void *, uint32_t, uint32_t, const void *) = NULL;
    void *user = NULL;
    struct {
        uint32_t site;
        uint32_t pad[31];
    } data = {.site = 1};
    tracing_lock();
    if (cbid < 1024 && (tracing.kinds[KIND_DRIVER] || tracing.calls[cbid])) {
        struct api_record *r;
        if (tracing.kinds[KIND_EXTERNAL_CORRELATION]) of_externals(correlation);
        r = record_reserve(sizeof *r, 0);
        if (r != NULL) {
            *r = (struct api_record){.kind = KIND_DRIVER, .cbid = cbid,
                                     .start = record_time(entry_ns),
                                     .end = record_time(sim_clock_ns()),
                                     .process = (uint32_t)getpid(), .thread = thread_id(),
                                     .correlation = correlation, .return_value = rc};
        }
    }
    records_settle();
    if (cbid < 1024 && tracing.callbacks[cbid]) {
        callback = tracing.callback;
        user = tracing.user;
    }
    tracing_unlock();
    if (callback != NULL) callback(user, 1, cbid, &data);
}

static uint32_t tag(void) {
    uint32_t value = atomic_fetch_add(&tags, 1) + 1;
    return value == 0 ? atomic_fetch_add(&tags, 1) + 1 : value;
}

static void of_kernel(const struct sim_submission *in) {
    struct kernel_record *r = record_reserve(sizeof *r, 1);
    if (r == NULL) return;
    *r = (struct kernel_record){.kind = KIND_CONCURRENT_KERNEL, .device = in->device,
                                .context = in->device + 1, .stream = (uint32_t)in->stream,
                                .correlation = in->correlation, .graph = in->graph,
                                .name = in->name == NULL ? "graph_part" : in->name};
    memcpy(r->grid, in->grid, sizeof r->grid);
    memcpy(r->block, in->block, sizeof r->block);
    record_await(in->tag, r);
}

static void of_copy(const struct sim_submission *in) {
    struct memcpy_record *r = record_reserve(sizeof *r, 1);
    uint8_t host = in->is_host_pageable ? 1 : 2;
    if (r == NULL) return;
    *r = (struct memcpy_record){.kind = KIND_MEMCPY, .bytes = in->bytes, .device = in->device,
                                .context = in->device + 1, .stream = (uint32_t)in->stream,
                                .correlation = in->correlation};
    r->copy_kind = in->is_host_only ? 9
                   : in->kind == SIM_COPY_IN ? 1
                   : in->kind == SIM_COPY_OUT ? 2
                                              : 8;
    r->source_kind = r->copy_kind == 1 || r->copy_kind == 9 ? host : 3;
    r->target_kind = r->copy_kind == 2 || r->copy_kind == 9 ? host : 3;
    record_await(in->tag, r);
}

static void of_set(const struct sim_submission *in) {
    struct memset_record *r = record_reserve(sizeof *r, 1);
    if (r == NULL) return;
    *r = (struct memset_record){.kind = KIND_MEMSET, .bytes = in->bytes, .device = in->device,
                                .context = in->device + 1, .stream = (uint32_t)in->stream,
                                .correlation = in->correlation};
    record_await(in->tag, r);
}

/* One record for all parts of a launch; the context's lock keeps launches apart in a context. */
static void of_graph(const struct sim_submission *in) {
    struct graph_record *r = graph_record_open;
    if (in->part == 0) {
        graph_record_open = r = record_reserve(sizeof *r, 1);
        if (r == NULL) return;
        *r = (struct graph_record){.kind = KIND_GRAPH_TRACE, .correlation = in->correlation,
                                   .device = in->device, .end_device = in->device,
                                   .context = in->device + 1, .end_context = in->device + 1,
                                   .stream = (uint32_t)in->stream, .graph = in->graph};
    }
    if (r != NULL) record_await_part(in->tag, r, in->n_parts - 1 - in->part);
}

static void submit(const struct sim_submission *in) {
    tracing_lock();
    if (in->graph != 0 && tracing.kinds[KIND_GRAPH_TRACE]) {
        of_graph(in);
    } else if (in->kind == SIM_KERNEL || in->kind == SIM_GRAPH || in->kind == SIM_COLLECTIVE) {
        if (tracing.kinds[KIND_CONCURRENT_KERNEL]) of_kernel(in);
    } else if (in->kind == SIM_SET) {
        if (tracing.kinds[KIND_MEMSET]) of_set(in);
    } else if (tracing.kinds[KIND_MEMCPY]) {
        of_copy(in);
    }
    tracing_unlock();
}

static void wait_over(enum sim_wait_type type, uint32_t device, unsigned long long stream,
                      uint64_t begin_ns, uint64_t end_ns) {
    tracing_lock();
    if (tracing.kinds[KIND_SYNCHRONIZATION]) {
        struct synchronization_record *r = record_reserve(sizeof *r, 0);
        if (r != NULL) {
            *r = (struct synchronization_record){
                .kind = KIND_SYNCHRONIZATION, .type = type, .start = record_time(begin_ns),
                .end = record_time(end_ns), .correlation = enter(0), .context = device + 1,
                .stream = (uint32_t)stream};
        }
    }
    records_settle();
    tracing_unlock();
}

static void queue_full(uint64_t begin_ns, uint64_t end_ns) {
    tracing_lock();
    if (tracing.kinds[KIND_OVERHEAD]) {
        struct overhead_record *r = record_reserve(sizeof *r, 0);
        if (r != NULL) {
            *r = (struct overhead_record){
                .kind = KIND_OVERHEAD, .overhead = 6 << 16, .object = 2,
                .process = (uint32_t)getpid(), .thread = thread_id(),
                .start = record_time(begin_ns), .end = record_time(end_ns)};
        }
    }
    tracing_unlock();
}

static void of_memory(const struct sim_memory *in) {
    tracing_lock();
    if (tracing.kinds[KIND_MEMORY2]) {
        struct memory_record *r = record_reserve(sizeof *r, 0);
        if (r != NULL) {
            *r = (struct memory_record){
                .kind = KIND_MEMORY2, .operation = in->is_release ? 2 : 1, .memory_kind = in->kind,
                .correlation = enter(0), .address = in->address, .bytes = in->bytes,
                .timestamp = record_time(sim_clock_ns()), .process = (uint32_t)getpid(),
                .device = in->device, .context = in->device + 1,
                .stream = in->is_async ? (uint32_t)in->stream : 0xFFFFFFFF,
                .is_async = in->is_async, .pool_type = in->is_async ? 1 : 0,
                .pool_used = in->is_async ? in->pool_used : 0};
        }
    }
    tracing_unlock();
}

static const struct sim_hooks hooks = {enter, leave, tag, submit, wait_over, queue_full, of_memory};

void tracing_update(void) {
    int is_on = 0;
    for (int i = 0; i < 64; i++) is_on |= tracing.kinds[i];
    for (int i = 0; i < 1024; i++) is_on |= tracing.calls[i] | tracing.callbacks[i];
    sim_hooks_set(is_on ? &hooks : NULL);
}
