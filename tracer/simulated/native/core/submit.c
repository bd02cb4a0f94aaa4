/* Giving work to a stream, and waiting for it. */
#define _GNU_SOURCE
#include "sim.h"

#include <sched.h>
#include <time.h>

#define NAP_MIN_NS 20000ULL
#define NAP_MAX_NS 200000ULL
#define HANG_NAP_NS 250000000ULL

static void update(struct sim_handle *h) {
    if (sim_lock(h) != 0) return;
    sim_advance(h, sim_clock_ns());
    sim_unlock(h);
}

/* The earliest time at which the stream can have completed `seq`, were it alone; SIM_FOREVER when
 * a kernel in the way never ends, 0 when nothing is known. With the lock held. */
static uint64_t earliest(struct sim_state *s, uint32_t stream, uint64_t seq, int depth) {
    struct sim_stream *st = &s->stream[stream];
    const struct sim_config *c = &s->device[st->device].config;
    uint64_t at = s->now_ns;
    for (uint64_t i = atomic_load(&st->head); i < seq; i++) {
        const struct sim_op *op = &st->ring[i % SIM_RING];
        double need = sim_need_ns(c, op);
        if (op->kind == SIM_RECORD) continue;
        if (op->kind == SIM_WAIT) {
            uint64_t other = depth > 0 && s->stream[op->arg2].generation == op->arg3
                                 ? earliest(s, op->arg2, op->arg, depth - 1) : 0;
            if (other > at) at = other;
            if (at == SIM_FOREVER) return at;
            continue;
        }
        if (op->flags & SIM_HANG) return SIM_FOREVER;
        if (st->started && i == atomic_load(&st->head)) need = st->remaining;
        else if (op->submit_ns + (uint64_t)c->launch_latency_ns > at) {
            at = op->submit_ns + (uint64_t)c->launch_latency_ns;
        }
        at += (uint64_t)need;
    }
    return at;
}

int sim_done(struct sim_handle *h, uint32_t stream, uint64_t seq) {
    struct sim_stream *st = &h->state->stream[stream];
    if (atomic_load_explicit(&st->head, memory_order_acquire) >= seq) return 1;
    update(h);
    return atomic_load_explicit(&st->head, memory_order_acquire) >= seq;
}

static void pass(uint64_t until, int wait_mode) {
    if (wait_mode == 0) {
        struct timespec ts = {.tv_sec = (time_t)(until / 1000000000ULL),
                              .tv_nsec = (long)(until % 1000000000ULL)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) != 0) {
        }
        return;
    }
    while (sim_clock_ns() < until) {
        if (wait_mode == 1) sched_yield();
    }
}

/* Returns when the stream has completed its first `seq` operations. */
void sim_wait(struct sim_handle *h, uint32_t stream, uint64_t seq, int wait_mode) {
    struct sim_stream *st = &h->state->stream[stream];
    uint64_t nap = NAP_MIN_NS;
    while (atomic_load_explicit(&st->head, memory_order_acquire) < seq) {
        uint64_t until = 0, now;
        if (sim_lock(h) == 0) {
            sim_advance(h, sim_clock_ns());
            if (atomic_load(&st->head) < seq) until = earliest(h->state, stream, seq, 4);
            sim_unlock(h);
            if (until == 0) break;
        }
        now = sim_clock_ns();
        if (until == SIM_FOREVER) {
            until = now + HANG_NAP_NS;
        } else if (until < now + nap) {
            until = now + nap;
            nap = nap * 3 / 2 < NAP_MAX_NS ? nap * 3 / 2 : NAP_MAX_NS;
        }
        pass(until, wait_mode);
    }
}

static uint64_t depth_of(struct sim_state *s, const struct sim_stream *st) {
    uint64_t depth = (uint64_t)s->device[st->device].config.queue_depth;
    return depth < 1 || depth > SIM_RING ? SIM_RING : depth;
}

/* Whether the next operation has to wait for a place. */
int sim_is_full(struct sim_handle *h, uint32_t stream) {
    struct sim_stream *st = &h->state->stream[stream];
    uint64_t tail = atomic_load_explicit(&st->tail, memory_order_relaxed);
    return tail - atomic_load_explicit(&st->head, memory_order_acquire) >= depth_of(h->state, st);
}

/* Appends an operation; its number. Blocks while the queue of the stream is full. */
uint64_t sim_submit(struct sim_handle *h, uint32_t stream, const struct sim_op *op,
                    int wait_mode) {
    struct sim_state *s = h->state;
    struct sim_stream *st = &s->stream[stream];
    uint64_t depth = depth_of(s, st);
    uint64_t tail = atomic_load_explicit(&st->tail, memory_order_relaxed);
    struct sim_op *slot = &st->ring[tail % SIM_RING];
    if (tail - atomic_load_explicit(&st->head, memory_order_acquire) >= depth) {
        sim_wait(h, stream, tail - depth + 1, wait_mode);
    }
    *slot = *op;
    slot->submit_ns = sim_clock_ns();
    atomic_store_explicit(&st->tail, tail + 1, memory_order_release);
    /* Now and then, so that a stream nobody waits for does not pile up. */
    if ((tail & 15) == 15 && sim_trylock(h) == 0) {
        sim_advance(h, sim_clock_ns());
        sim_unlock(h);
    }
    return tail + 1;
}
