/* What the parts of the simulated libcuda share: all of it belongs to one process. */
#ifndef TRACER_DRIVER_H
#define TRACER_DRIVER_H

#include <pthread.h>
#include <stdatomic.h>

#include "../core/cost.h"
#include "../core/sim.h"
#include "abi.h"

#define API __attribute__((visibility("default")))

struct stream {
    struct context *ctx;
    uint32_t sim;        /* number in the shared state */
    uint32_t generation; /* of that number */
    unsigned int flags;  /* 1: does not wait for the legacy stream */
    int priority;
    unsigned long long id;
    _Atomic uint64_t last; /* number of the last operation submitted */
    uint64_t legacy_waited;
    struct capture *capture;
    struct stream *next;
};

struct event {
    struct context *ctx;
    uint32_t sim;
    uint32_t generation;
    unsigned int flags; /* 1: synchronising on it sleeps; 2: no timing */
    _Atomic uint64_t recorded;
    uint32_t stream;
    uint32_t stream_generation;
    uint64_t stream_seq;
    struct capture *capture;
};

struct context {
    CUdevice device;
    unsigned int flags;
    int references;
    int primary;
    int opened;
    pthread_mutex_t lock; /* as in the real one, taken by everything that submits */
    struct stream legacy;
    struct stream *streams;
    unsigned int generation;
};

struct graph {
    struct sim_op *ops;
    size_t n, room;
};

struct capture {
    struct graph *graph;
    struct stream *origin;
    unsigned long long id;
    int invalid;
};

struct graph_exec {
    struct sim_op *parts;
    size_t n;
    uint64_t replays;
    uint32_t id;
};

struct module {
    const void *image;
    struct function *functions;
    struct module *next;
};

struct function {
    char *name;
    struct module *module;
    const struct sim_entry *entry;
    uint32_t kernel; /* number in the shared table of names */
    int loaded;
    int attributes[32];
    struct function *next;
};

extern struct sim_handle *sim;
extern uint32_t client;

CUresult ready(void); /* OK after cuInit in this process, not in a forked child of it */
struct context *current(void);
CUresult open_context(struct context *ctx);
CUresult open_stream(struct context *ctx, struct stream *s, unsigned int flags, int priority);
struct stream *resolve(CUstream handle, int per_thread);
int wait_mode(const struct context *ctx);
CUresult submit(struct stream *s, struct sim_op *op);
CUresult wait_stream(struct stream *s);
CUresult wait_context(struct context *ctx);
int is_capturing(const struct stream *s);
CUresult capture_op(struct stream *s, const struct sim_op *op);
CUresult capture_join(struct stream *s, struct capture *c);

#endif
