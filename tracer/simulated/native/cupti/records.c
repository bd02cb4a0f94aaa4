/* Places for records in the client's buffers, and the times that they get when the work is over.
 *
 * As in the real one a record takes its place when the work is given, and a buffer is handed back
 * unforced only when all its records have their times. */
#include "records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../core/hooks.h"

#define BUFFERS 64
#define PENDING 65536

struct buffer {
    uint8_t *memory;
    uint64_t size, used, serial;
    uint32_t pending;
    int is_full;
};

request_function on_request;
complete_function on_complete;
uint64_t (*on_timestamp)(void);
int is_zeroed;

static struct buffer buffers[BUFFERS];
static struct buffer *current;
static struct pending waiting[PENDING];
static uint64_t dropped, serials, cursor;
static uint32_t client_generation;

uint32_t record_bytes(uint32_t kind) {
    switch (kind) {
    case KIND_CONCURRENT_KERNEL: return sizeof(struct kernel_record);
    case KIND_MEMCPY: return sizeof(struct memcpy_record);
    case KIND_MEMSET: return sizeof(struct memset_record);
    case KIND_DRIVER: return sizeof(struct api_record);
    case KIND_SYNCHRONIZATION: return sizeof(struct synchronization_record);
    case KIND_OVERHEAD: return sizeof(struct overhead_record);
    case KIND_GRAPH_TRACE: return sizeof(struct graph_record);
    case KIND_MEMORY2: return sizeof(struct memory_record);
    case KIND_EXTERNAL_CORRELATION: return sizeof(struct external_record);
    default: return 0;
    }
}

/* A time of the device in the clock that the client asked for; the wall clock by default. */
uint64_t record_time(uint64_t time_ns) {
    struct timespec ts;
    uint64_t before, other, after;
    before = sim_clock_ns();
    if (on_timestamp != NULL) {
        other = on_timestamp();
    } else {
        clock_gettime(CLOCK_REALTIME, &ts);
        other = (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
    }
    after = sim_clock_ns();
    if (before <= other && other <= after) return time_ns; /* the device's own clock */
    return time_ns + other - before;
}

static void hand_back(struct buffer *b) {
    uint8_t *memory = b->memory;
    uint64_t size = b->size, used = b->used;
    if (b == current) current = NULL;
    for (uint32_t i = 0; i < PENDING && b->pending > 0; i++) {
        if (waiting[i].tag != 0 && waiting[i].in == b) {
            waiting[i].tag = 0;
            b->pending -= waiting[i].parts == 0;
        }
    }
    memset(b, 0, sizeof *b);
    on_complete(NULL, 0, memory, size, used);
}

static int holds_zeros(const uint8_t *memory, uint64_t size) {
    return memory[0] == 0 && memcmp(memory, memory + 1, size - 1) == 0;
}

static struct buffer *open_buffer(void) {
    struct buffer *b = NULL;
    uint64_t max_records = 0;
    if (on_request == NULL) return NULL;
    for (int i = 0; i < BUFFERS && b == NULL; i++) {
        if (buffers[i].memory == NULL) b = &buffers[i];
    }
    if (b == NULL) return NULL;
    on_request(&b->memory, &b->size, &max_records);
    if (b->memory == NULL || b->size == 0 || ((uintptr_t)b->memory & 7) != 0) {
        memset(b, 0, sizeof *b);
        return NULL;
    }
    if (!is_zeroed) {
        memset(b->memory, 0, b->size);
    } else if (!holds_zeros(b->memory, b->size)) {
        fprintf(stderr, "tracer: a buffer of zeros was promised and is none.\n");
        abort();
    }
    b->serial = ++serials;
    return b;
}

/* A place of so many bytes, zeroed; NULL where there is none, which is counted. */
void *record_reserve(uint32_t bytes, int is_pending) {
    void *place;
    if (current != NULL && current->used + bytes > current->size) {
        current->is_full = 1;
        if (current->pending == 0) hand_back(current);
        current = NULL;
    }
    if (current == NULL) current = open_buffer();
    if (current == NULL) {
        dropped++;
        return NULL;
    }
    place = current->memory + current->used;
    current->used += bytes;
    current->pending += is_pending != 0;
    return place;
}

static struct buffer *buffer_of(const void *record) {
    for (int i = 0; i < BUFFERS; i++) {
        const uint8_t *at = record;
        if (buffers[i].memory != NULL && at >= buffers[i].memory &&
            at < buffers[i].memory + buffers[i].size) {
            return &buffers[i];
        }
    }
    return NULL;
}

/* The last part ends a record; those before it only begin or prolong it. */
void record_await_part(uint32_t tag, void *record, uint32_t parts_left) {
    struct pending *p = &waiting[tag % PENDING];
    if (p->tag != 0 && p->parts == 0 && p->in->pending > 0) p->in->pending--;
    *p = (struct pending){
        .tag = tag, .record = record, .in = buffer_of(record), .parts = parts_left};
}

void record_await(uint32_t tag, void *record) { record_await_part(tag, record, 0); }

static void set_times(void *record, uint64_t start, uint64_t end) {
    switch (*(uint32_t *)record) {
    case KIND_CONCURRENT_KERNEL:
        ((struct kernel_record *)record)->start = start;
        ((struct kernel_record *)record)->end = end;
        break;
    case KIND_MEMCPY:
        ((struct memcpy_record *)record)->start = start;
        ((struct memcpy_record *)record)->end = end;
        break;
    case KIND_MEMSET:
        ((struct memset_record *)record)->start = start;
        ((struct memset_record *)record)->end = end;
        break;
    default: {
        struct graph_record *g = record;
        if (g->start == 0) g->start = start;
        g->end = end;
    }
    }
}

static struct sim_client *own_client(void) {
    static struct sim_client *known;
    struct sim_handle *h = sim_from_environment();
    if (known != NULL || h == NULL) return known;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &h->state->client[i];
        if (atomic_load(&c->used) != 0 && c->pid == getpid()) known = c;
    }
    return known;
}

/* Fills in the times of everything that has ended. */
void records_settle(void) {
    struct sim_client *c = own_client();
    uint64_t head;
    if (c == NULL) return;
    if (c->generation != client_generation) cursor = 0;
    client_generation = c->generation;
    head = atomic_load_explicit(&c->done_head, memory_order_acquire);
    if (head - cursor > SIM_DONE) {
        dropped += head - cursor - SIM_DONE;
        cursor = head - SIM_DONE;
    }
    for (; cursor < head; cursor++) {
        struct sim_done d = c->done[cursor % SIM_DONE];
        struct pending *p = &waiting[d.tag % PENDING];
        if (p->tag != d.tag) continue;
        set_times(p->record, record_time(d.start_ns), record_time(d.end_ns));
        p->tag = 0;
        /* The parts of a graph before its last wait for nothing of their own. */
        if (p->parts == 0 && p->in->pending > 0) {
            p->in->pending--;
            if (p->in->pending == 0 && p->in->is_full) hand_back(p->in);
        }
    }
}

void records_deliver(int is_forced) {
    for (;;) {
        struct buffer *next = NULL;
        for (int i = 0; i < BUFFERS; i++) {
            struct buffer *b = &buffers[i];
            if (b->memory == NULL || (b->used == 0 && !is_forced)) continue;
            if (b->pending > 0 && !is_forced) continue;
            if (next == NULL || b->serial < next->serial) next = b;
        }
        if (next == NULL) return;
        hand_back(next);
    }
}

uint64_t records_dropped(void) {
    uint64_t n = dropped;
    dropped = 0;
    return n;
}

void records_forget(void) {
    records_deliver(1);
    memset(waiting, 0, sizeof waiting);
}
