/* Processes, their streams and events; and what becomes of them when a process dies. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A client lives as long as its process holds the write lock on its byte of the clients' file:
 * the kernel drops it however the process ends, and it is seen across PID namespaces. */
static int client_lock(struct sim_handle *h, uint32_t client, int command, short type) {
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = client, .l_len = 1};
    if (fcntl(h->lock_fd, command, &fl) != 0) return -1;
    return fl.l_type == F_UNLCK ? 0 : 1;
}

/* The real rule, seen from the file system: a client is in MPS when it finds the control pipe. */
static int joins_mps(struct sim_state *s) {
    const char *dir = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512], server[512];
    char *real, *wanted;
    int same;
    if (s->global.mps == 0) return 0;
    snprintf(path, sizeof path, "%s/control", dir == NULL ? "/tmp/nvidia-mps" : dir);
    snprintf(server, sizeof server, "%s/control", s->mps_pipe);
    if (access(path, W_OK) != 0) return 0;
    real = realpath(path, NULL);
    wanted = realpath(server, NULL);
    same = real != NULL && wanted != NULL && strcmp(real, wanted) == 0;
    free(real);
    free(wanted);
    return same;
}

/* Registers the calling process; its number, or SIM_NONE when the table is full. */
uint32_t sim_client_open(struct sim_handle *h) {
    struct sim_state *s = h->state;
    uint32_t found = SIM_NONE;
    while (sim_lock(h) != 0) {
    }
    sim_advance(h, sim_clock_ns());
    sim_reap(h, sim_clock_ns(), 1);
    for (uint32_t i = 0; i < SIM_CLIENTS && found == SIM_NONE; i++) {
        struct sim_client *c = &s->client[i];
        if (atomic_load(&c->used) != 0 || client_lock(h, i, F_SETLK, F_WRLCK) < 0) continue;
        c->generation++;
        c->pid = getpid();
        c->mps = (uint32_t)joins_mps(s);
        c->created_ns = sim_clock_ns();
        for (int d = 0; d < SIM_DEVICES; d++) {
            atomic_store(&c->memory_bytes[d], 0);
            atomic_store(&c->contexts[d], 0);
        }
        atomic_store(&c->launches, 0);
        atomic_store(&c->done_head, 0);
        memset(c->buckets, 0, sizeof c->buckets);
        atomic_store(&c->used, 1);
        sim_is_client = 1;
        found = i;
    }
    sim_unlock(h);
    return found;
}

static void forget(struct sim_state *s, uint32_t client, uint64_t now) {
    for (uint32_t i = 0; i < SIM_STREAMS; i++) {
        struct sim_stream *st = &s->stream[i];
        if (atomic_load(&st->used) != 0 && st->client == client) sim_drop_stream(s, st, now);
    }
    for (uint32_t i = 0; i < SIM_EVENTS; i++) {
        if (s->event[i].owner == client + 1) s->event[i].owner = 0;
    }
    atomic_store(&s->client[client].used, 0);
}

void sim_client_close(struct sim_handle *h, uint32_t client) {
    if (sim_lock(h) != 0) return;
    sim_advance(h, sim_clock_ns());
    forget(h->state, client, h->state->now_ns);
    sim_unlock(h);
    client_lock(h, client, F_SETLK, F_UNLCK);
}

/* With the lock held: drops the clients whose process is gone, at most every 20 ms unless forced. */
void sim_reap(struct sim_handle *h, uint64_t now, int force) {
    struct sim_state *s = h->state;
    pid_t self = getpid();
    if (!force && now - s->reaped_ns < 20000000) return;
    s->reaped_ns = now;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &s->client[i];
        if (atomic_load(&c->used) == 0 || c->pid == self) continue;
        if (client_lock(h, i, F_GETLK, F_WRLCK) == 0) forget(s, i, now);
    }
}

/* A new stream of a client on a device; SIM_NONE when the table is full. */
uint32_t sim_stream_open(struct sim_handle *h, uint32_t client, uint32_t device) {
    struct sim_state *s = h->state;
    uint32_t found = SIM_NONE;
    while (sim_lock(h) != 0) {
    }
    for (uint32_t i = 0; i < SIM_STREAMS && found == SIM_NONE; i++) {
        struct sim_stream *st = &s->stream[i];
        if (atomic_load(&st->used) != 0) continue;
        st->generation++;
        st->client = client;
        st->device = device;
        st->started = st->arrived = 0;
        /* `head` and `tail` go on counting, so that a number of a former stream stays done. */
        st->last_end_ns = 0;
        atomic_store(&st->used, 1);
        found = i;
    }
    sim_unlock(h);
    return found;
}

/* The stream goes when its work is done. */
void sim_stream_close(struct sim_handle *h, uint32_t stream) {
    struct sim_stream *st = &h->state->stream[stream];
    while (sim_lock(h) != 0) {
    }
    sim_advance(h, sim_clock_ns());
    atomic_store(&st->used, atomic_load(&st->head) == atomic_load(&st->tail) ? 0 : 2);
    sim_unlock(h);
}

uint32_t sim_event_open(struct sim_handle *h, uint32_t client) {
    struct sim_state *s = h->state;
    uint32_t found = SIM_NONE;
    while (sim_lock(h) != 0) {
    }
    for (uint32_t i = 0; i < SIM_EVENTS && found == SIM_NONE; i++) {
        uint32_t slot = (s->event_hint + i) % SIM_EVENTS;
        if (s->event[slot].owner != 0) continue;
        s->event[slot].owner = client + 1;
        s->event[slot].generation++;
        atomic_store(&s->event[slot].done_seq, 0);
        atomic_store(&s->event[slot].done_ns, 0);
        s->event_hint = slot + 1;
        found = slot;
    }
    sim_unlock(h);
    return found;
}

void sim_event_close(struct sim_handle *h, uint32_t event) {
    while (sim_lock(h) != 0) {
    }
    h->state->event[event].owner = 0;
    sim_unlock(h);
}

/* The number of a kernel name in the shared table, the same for every process. */
uint32_t sim_kernel_id(struct sim_handle *h, const char *name) {
    struct sim_state *s = h->state;
    uint32_t found = SIM_NONE;
    while (sim_lock(h) != 0) {
    }
    for (uint32_t i = 0; i < s->kernel_count && found == SIM_NONE; i++) {
        if (strncmp(s->kernels[i], name, SIM_NAME - 1) == 0) found = i;
    }
    if (found == SIM_NONE && s->kernel_count < SIM_KERNELS) {
        found = s->kernel_count;
        snprintf(s->kernels[found], SIM_NAME, "%s", name);
        s->kernel_count++;
    }
    sim_unlock(h);
    return found;
}
