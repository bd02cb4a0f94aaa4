/* The device: a discrete simulation that is carried forward to the present by whoever asks.
 *
 * All devices advance together from event to event. Between two events every running operation
 * progresses at a constant rate:
 *   - a device runs the kernels of one group at a time: a process of its own, or all of MPS;
 *   - the heads of the group's streams run at once and share the device: each asks for its `share`,
 *     and when the sum exceeds 1 all are slowed by that sum;
 *   - copies between host and device run on two engines beside the kernels, whoever's turn it is,
 *     and split their direction's bandwidth;
 *   - a collective occupies its share without progress until every rank has entered.
 */
#include "sim.h"

#include <math.h>
#include <string.h>

struct step {
    struct sim_state *s;
    uint64_t t;
    uint32_t active[SIM_STREAMS];
    uint32_t n;
};

static struct sim_op *head_of(struct sim_stream *st) {
    uint64_t head = atomic_load_explicit(&st->head, memory_order_relaxed);
    if (head == atomic_load_explicit(&st->tail, memory_order_acquire)) return NULL;
    return &st->ring[head % SIM_RING];
}

static int is_compute(const struct sim_op *op) {
    return op->kind != SIM_COPY_IN && op->kind != SIM_COPY_OUT;
}

static int is_instant(const struct sim_op *op) {
    return op->kind == SIM_RECORD || op->kind == SIM_WAIT;
}

static uint32_t group_of(struct sim_state *s, const struct sim_stream *st) {
    return s->client[st->client].mps ? SIM_CLIENTS : st->client;
}

static uint64_t ready_at(struct sim_state *s, const struct sim_stream *st,
                         const struct sim_op *op) {
    if (is_instant(op)) return op->submit_ns;
    return op->submit_ns + (uint64_t)s->device[st->device].config.launch_latency_ns;
}

void sim_truth_write(struct sim_state *s, const struct sim_stream *st, const struct sim_op *op,
                     uint64_t end_ns, uint8_t flags) {
    uint64_t at = atomic_load_explicit(&s->truth_head, memory_order_relaxed);
    if (s->truth_capacity == 0) return;
    s->truth[at & (s->truth_capacity - 1)] = (struct sim_truth){
        .submit_ns = op->submit_ns, .start_ns = st->start_ns, .end_ns = end_ns,
        .bytes = op->bytes, .kernel = op->kernel, .pid = s->client[st->client].pid,
        .stream = (uint32_t)(st - s->stream), .device = st->device, .count = op->count,
        .kind = op->kind, .flags = (uint8_t)(op->flags | flags), .share = op->share,
    };
    atomic_store_explicit(&s->truth_head, at + 1, memory_order_release);
}

/* Tells the owner of a tagged operation when it ran. */
static void tell_owner(struct sim_state *s, const struct sim_stream *st, const struct sim_op *op,
                       uint64_t end_ns) {
    struct sim_client *c = &s->client[st->client];
    uint64_t at = atomic_load_explicit(&c->done_head, memory_order_relaxed);
    if (op->tag == 0) return;
    c->done[at % SIM_DONE] =
        (struct sim_done){.start_ns = st->start_ns, .end_ns = end_ns, .tag = op->tag};
    atomic_store_explicit(&c->done_head, at + 1, memory_order_release);
}

static void pop(struct sim_stream *st, uint64_t now) {
    st->started = st->arrived = 0;
    st->last_end_ns = now;
    atomic_fetch_add_explicit(&st->head, 1, memory_order_release);
}

static struct sim_collective *collective_of(struct sim_state *s, const struct sim_op *op) {
    struct sim_collective *spare = NULL;
    for (uint32_t i = 0; i < SIM_COLLECTIVES; i++) {
        struct sim_collective *c = &s->collective[i];
        if (c->ranks != 0 && c->key == op->arg) return c;
        if (c->ranks == 0 && spare == NULL) spare = c;
    }
    if (spare != NULL) {
        *spare = (struct sim_collective){.key = op->arg, .ranks = op->arg2};
    }
    return spare;
}

static void enter(struct sim_state *s, struct sim_stream *st, const struct sim_op *op) {
    struct sim_collective *c = st->arrived ? NULL : collective_of(s, op);
    if (c != NULL) {
        c->arrived++;
        st->arrived = 1;
    }
}

static int all_entered(struct sim_state *s, const struct sim_op *op) {
    struct sim_collective *c = collective_of(s, op);
    return c != NULL && c->arrived >= c->ranks;
}

static void leave(struct sim_state *s, const struct sim_op *op) {
    struct sim_collective *c = collective_of(s, op);
    if (c != NULL && ++c->departed >= c->ranks) c->ranks = 0;
}

/* Throws away what a dead client had in a stream. */
void sim_drop_stream(struct sim_state *s, struct sim_stream *st, uint64_t now) {
    struct sim_op *op = head_of(st);
    if (op != NULL && st->started) {
        sim_truth_write(s, st, op, now, SIM_ABORTED);
        if (op->kind == SIM_COLLECTIVE && st->arrived) {
            struct sim_collective *c = collective_of(s, op);
            if (c != NULL && c->arrived > 0 && --c->arrived == 0) c->ranks = 0;
        }
    }
    atomic_store(&st->head, atomic_load(&st->tail));
    atomic_store(&st->used, 0);
}

/* How long an operation takes alone. The parts of a graph follow each other. */
double sim_need_ns(const struct sim_config *c, const struct sim_op *op) {
    double compute = (double)op->compute_ns / fmax(c->clock_factor, 1e-3);
    double memory = (double)op->memory_ns / fmax(c->memory_factor, 1e-3);
    if (!is_compute(op)) return fmax((double)op->memory_ns, 1);
    return fmax(op->kind == SIM_GRAPH ? compute + memory : fmax(compute, memory), 1);
}

static void start(struct sim_state *s, struct sim_stream *st, struct sim_op *op, uint64_t t) {
    st->started = 1;
    st->start_ns = t;
    st->duration = sim_need_ns(&s->device[st->device].config, op);
    st->remaining = (op->flags & SIM_HANG) ? INFINITY : st->duration;
}

/* Completes what takes no time: records of events, and waits that are over. */
static int settle(struct step *x) {
    struct sim_state *s = x->s;
    int progress = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op;
        while ((op = head_of(st)) != NULL && is_instant(op) && op->submit_ns <= x->t) {
            if (op->kind == SIM_RECORD) {
                struct sim_event *e = &s->event[op->arg2];
                if (e->generation == op->arg3) {
                    atomic_store(&e->done_ns, x->t);
                    atomic_store(&e->done_seq, op->arg);
                }
            } else {
                struct sim_stream *other = &s->stream[op->arg2];
                if (other->generation == op->arg3 && atomic_load(&other->used) != 0 &&
                    atomic_load(&other->head) < op->arg) {
                    break;
                }
            }
            pop(st, x->t);
            progress = 1;
        }
    }
    return progress;
}

/* Whose turn it is on each device at the time of the step; when that must be looked at again. */
static uint64_t take_turns(struct step *x, uint64_t next) {
    struct sim_state *s = x->s;
    uint64_t wanting[SIM_DEVICES][2] = {{0}}; /* bit per group; the second word is MPS */
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op = head_of(st);
        uint64_t ready;
        uint32_t g;
        if (op == NULL || is_instant(op)) continue;
        ready = ready_at(s, st, op);
        if (ready > x->t) {
            if (ready < next) next = ready;
            continue;
        }
        if (!is_compute(op)) continue;
        g = group_of(s, st);
        wanting[st->device][g >> 6] |= 1ULL << (g & 63);
    }
    for (uint32_t d = 0; d < s->devices; d++) {
        struct sim_device *dev = &s->device[d];
        uint64_t slice = (uint64_t)fmax(dev->config.timeslice_ns, 1e4);
        uint64_t own = wanting[d][0], mps = wanting[d][1];
        int groups = __builtin_popcountll(own) + (mps != 0);
        uint32_t g = dev->group;
        int holds = g != SIM_NONE && ((wanting[d][g >> 6] >> (g & 63)) & 1) != 0;
        if (groups == 0) continue;
        if (holds && groups > 1 && x->t >= dev->slice_end_ns) {
            uint64_t late = x->t - dev->slice_end_ns;
            /* A slice that ended in solitude was followed by others of the same owner. */
            if (late >= slice) {
                dev->slice_end_ns += (late / slice + 1) * slice;
            } else {
                holds = 0;
            }
        }
        if (!holds) {
            uint32_t last = g == SIM_NONE ? SIM_CLIENTS : g;
            for (uint32_t k = 1; k <= SIM_CLIENTS + 1; k++) {
                uint32_t candidate = (last + k) % (SIM_CLIENTS + 1);
                if ((wanting[d][candidate >> 6] >> (candidate & 63)) & 1) {
                    g = candidate;
                    break;
                }
            }
            if (g != dev->group && dev->group != SIM_NONE) {
                dev->switches++;
                dev->switch_until_ns = x->t + (uint64_t)dev->config.switch_ns;
            }
            dev->group = g;
            dev->slice_end_ns = x->t + (uint64_t)dev->config.switch_ns + slice;
        }
        if (groups > 1 && dev->slice_end_ns < next) next = dev->slice_end_ns;
        if (dev->switch_until_ns > x->t && dev->switch_until_ns < next) next = dev->switch_until_ns;
    }
    return next;
}

struct load {
    double demand;
    uint32_t copies_in, copies_out;
    int busy;
    double sm, memory, tensor, power, rx, tx;
};

static int running(struct step *x, struct sim_stream *st, struct sim_op *op) {
    struct sim_device *dev = &x->s->device[st->device];
    if (op == NULL || is_instant(op) || ready_at(x->s, st, op) > x->t) return 0;
    if (!is_compute(op)) return 1;
    return dev->group == group_of(x->s, st) && dev->switch_until_ns <= x->t;
}

static uint64_t set_rates(struct step *x, struct load *loads, uint64_t next) {
    struct sim_state *s = x->s;
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op = head_of(st);
        st->rate = 0;
        if (!running(x, st, op)) continue;
        if (!st->started) start(s, st, op, x->t);
        if (op->kind == SIM_COLLECTIVE) enter(s, st, op);
        if (s->device[st->device].config.hang_release > s->device[st->device].released &&
            (op->flags & SIM_HANG) != 0) {
            st->remaining = 1;
        }
        st->rate = 1;
        if (op->kind == SIM_COPY_IN) loads[st->device].copies_in++;
        else if (op->kind == SIM_COPY_OUT) loads[st->device].copies_out++;
        else loads[st->device].demand += op->share / 1000.0;
    }
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op = head_of(st);
        struct load *l = &loads[st->device];
        double share, end;
        if (st->rate == 0) continue;
        if (op->kind == SIM_COPY_IN || op->kind == SIM_COPY_OUT) {
            double link = (double)op->bytes / st->duration;
            st->rate = 1.0 / (op->kind == SIM_COPY_IN ? l->copies_in : l->copies_out);
            if (op->kind == SIM_COPY_IN) l->rx += link * st->rate;
            else l->tx += link * st->rate;
        } else {
            st->rate = 1.0 / fmax(1.0, l->demand);
            share = fmin(1.0, op->share / 1000.0) * st->rate;
            l->busy = 1;
            l->sm += share;
            l->power += op->power / 1000.0 * share;
            l->memory += share * fmin(1.0, (double)op->memory_ns / st->duration);
            l->tensor += share * op->tensor / 100.0;
            if (op->kind == SIM_COLLECTIVE && !all_entered(s, op)) {
                st->rate = 0;
                continue;
            }
        }
        if (isinf(st->remaining)) continue;
        end = ceil(st->remaining / st->rate);
        if (end < (double)(next - x->t)) next = x->t + (uint64_t)fmax(end, 1);
    }
    for (uint32_t d = 0; d < s->devices; d++) {
        s->device[d].released = s->device[d].config.hang_release;
    }
    return next;
}

static void account(struct step *x, const struct load *loads, uint64_t next) {
    struct sim_state *s = x->s;
    uint64_t seen[SIM_DEVICES] = {0};
    for (uint32_t d = 0; d < s->devices; d++) {
        const struct load *l = &loads[d];
        double clock = s->device[d].config.clock_factor;
        if (!l->busy && l->rx == 0 && l->tx == 0) continue;
        sim_account(s, d, x->t, next, l->busy, fmin(l->sm, 1), fmin(l->memory, 1),
                    fmin(l->tensor, 1), fmin(l->power, 1) * clock * clock, l->rx, l->tx);
    }
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op = head_of(st);
        if (!running(x, st, op) || !is_compute(op)) continue;
        if ((seen[st->device] >> st->client) & 1) continue;
        seen[st->device] |= 1ULL << st->client;
        sim_account_client(&s->client[st->client], st->device, x->t, next,
                           fmin(1.0, (double)op->memory_ns / st->duration));
    }
}

static void progress(struct step *x, uint64_t next) {
    struct sim_state *s = x->s;
    double dt = (double)(next - x->t);
    for (uint32_t i = 0; i < x->n; i++) {
        struct sim_stream *st = &s->stream[x->active[i]];
        struct sim_op *op = head_of(st);
        if (op == NULL || st->rate == 0) continue;
        st->remaining -= dt * st->rate;
        if (st->remaining > 0.5) continue;
        if (op->kind == SIM_COLLECTIVE) leave(s, op);
        sim_truth_write(s, st, op, next, 0);
        tell_owner(s, st, op, next);
        pop(st, next);
    }
}

static void find_active(struct step *x) {
    struct sim_state *s = x->s;
    x->n = 0;
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        struct sim_stream *st = &s->stream[i];
        if (atomic_load_explicit(&st->used, memory_order_acquire) == 0) continue;
        if (head_of(st) != NULL) {
            x->active[x->n++] = i;
        } else if (atomic_load(&st->used) == 2) {
            atomic_store(&st->used, 0);
        }
    }
}

static void drop_idle(struct step *x) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < x->n; i++) {
        if (head_of(&x->s->stream[x->active[i]]) != NULL) x->active[kept++] = x->active[i];
    }
    x->n = kept;
}

/* Carries the simulation forward to `now`; with the lock held. */
void sim_advance(struct sim_handle *h, uint64_t now) {
    struct step x = {.s = h->state, .t = h->state->now_ns};
    sim_reap(h, now, 0);
    if (now <= x.t) return;
    find_active(&x);
    while (x.t < now && x.n > 0) {
        struct load loads[SIM_DEVICES];
        uint64_t next = now;
        while (settle(&x)) {
        }
        drop_idle(&x);
        memset(loads, 0, sizeof loads);
        next = take_turns(&x, next);
        next = set_rates(&x, loads, next);
        account(&x, loads, next);
        progress(&x, next);
        x.t = next;
        x.s->now_ns = next;
    }
    x.s->now_ns = now;
}
