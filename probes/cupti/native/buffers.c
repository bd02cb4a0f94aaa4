/* A fixed pool of buffers: CUPTI fills them on any thread, the helper thread empties them.
 *
 * Neither callback allocates, locks or waits. Without a free buffer CUPTI drops records and counts
 * them. */
#define _GNU_SOURCE
#include "collector.h"

#include <string.h>
#include <sys/mman.h>

#define BUFFERS 32
#define BUFFER_BYTES (512u << 10)

enum { FREE = 0, FILLING = 1, FULL = 2 };

static uint8_t *memory;
static _Atomic int states[BUFFERS];
static size_t valid_bytes[BUFFERS];
static _Atomic uint64_t order;
static uint64_t finished[BUFFERS]; /* in which order they were completed */

int pool_open(void) {
    if (memory == NULL) {
        uint8_t *p = mmap(NULL, (size_t)BUFFERS * BUFFER_BYTES, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return -1;
        memory = p;
    }
    return 0;
}

/* Gives the pages back; CUPTI may still hold a buffer, so the addresses stay. */
void pool_close(void) {
    for (int i = 0; i < BUFFERS; i++) {
        if (atomic_load(&states[i]) == FREE) {
            madvise(memory + (size_t)i * BUFFER_BYTES, BUFFER_BYTES, MADV_DONTNEED);
        }
    }
}

void pool_request(uint8_t **buffer, size_t *size, size_t *max_records) {
    *max_records = 0;
    for (int i = 0; i < BUFFERS; i++) {
        int expected = FREE;
        if (atomic_compare_exchange_strong(&states[i], &expected, FILLING)) {
            *buffer = memory + (size_t)i * BUFFER_BYTES;
            *size = BUFFER_BYTES;
            return;
        }
    }
    *buffer = NULL;
    *size = 0;
}

void pool_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    size_t i = (size_t)(buffer - memory) / BUFFER_BYTES;
    (void)context, (void)stream, (void)size;
    if (buffer < memory || i >= BUFFERS) return;
    valid_bytes[i] = valid <= BUFFER_BYTES ? valid : 0;
    finished[i] = atomic_fetch_add(&order, 1);
    atomic_store_explicit(&states[i], FULL, memory_order_release);
}

static void of_copy(struct record *out, const struct activity_memcpy *in) {
    out->kind = RECORD_COPY;
    out->bytes = in->bytes;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->graph = in->graph;
    out->detail = in->copy_kind;
    out->source_kind = in->source_kind;
    out->target_kind = in->target_kind;
}

static void of_peer_copy(struct record *out, const struct activity_memcpy2 *in) {
    out->kind = RECORD_COPY;
    out->bytes = in->bytes;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->graph = in->graph;
    out->detail = in->copy_kind;
    out->source_kind = in->source_kind;
    out->target_kind = in->target_kind;
}

static void of_set(struct record *out, const struct activity_memset *in) {
    out->kind = RECORD_SET;
    out->bytes = in->bytes;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->graph = in->graph;
}

static void of_kernel(struct record *out, const struct activity_kernel *in,
                      struct ring_header *ring) {
    out->kind = RECORD_KERNEL;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->graph = in->graph;
    out->name = ring_name(ring, in->name);
    for (int i = 0; i < 3; i++) {
        out->grid[i] = (uint32_t)in->grid[i];
        out->block[i] = (uint32_t)in->block[i];
    }
}

static void of_graph(struct record *out, const struct activity_graph *in) {
    out->kind = RECORD_GRAPH;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->graph = in->graph;
}

static void of_call(struct record *out, const struct activity_api *in) {
    out->kind = RECORD_CALL;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->correlation = in->correlation;
    out->thread = in->thread;
    out->detail = in->cbid;
}

static void of_sync(struct record *out, const struct activity_synchronization *in) {
    out->kind = RECORD_SYNC;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->detail = in->type;
}

static void of_overhead(struct record *out, const struct activity_overhead *in) {
    out->kind = RECORD_OVERHEAD;
    out->start_ns = in->start;
    out->end_ns = in->end;
    out->detail = in->overhead;
    if (in->object == 2) out->thread = in->thread;
}

static void of_memory(struct record *out, const struct activity_memory *in) {
    out->kind = RECORD_MEMORY;
    out->start_ns = out->end_ns = in->timestamp;
    out->bytes = in->bytes;
    out->device = in->device;
    out->context = in->context;
    out->stream = in->stream;
    out->correlation = in->correlation;
    out->detail = in->operation;
    out->source_kind = (uint8_t)in->memory_kind;
    out->target_kind = in->is_async != 0;
    memcpy(out->grid, &in->address, sizeof in->address);
    if (in->pool_type != 0) memcpy(out->block, &in->pool_used, sizeof in->pool_used);
}

static void of_external(struct record *out, const struct activity_external *in) {
    out->kind = RECORD_EXTERNAL;
    out->bytes = in->external;
    out->correlation = in->correlation;
    out->detail = in->external_kind;
}

/* Takes over one record; 0 for a kind that was not asked for. */
static int convert(struct record *out, const struct activity *in, struct ring_header *ring) {
    *out = (struct record){0};
    switch (in->kind) {
    case ACTIVITY_KERNEL:
    case ACTIVITY_CONCURRENT_KERNEL: of_kernel(out, (const void *)in, ring); break;
    case ACTIVITY_MEMCPY: of_copy(out, (const void *)in); break;
    case ACTIVITY_MEMCPY2: of_peer_copy(out, (const void *)in); break;
    case ACTIVITY_MEMSET: of_set(out, (const void *)in); break;
    case ACTIVITY_GRAPH_TRACE: of_graph(out, (const void *)in); break;
    case ACTIVITY_DRIVER:
    case ACTIVITY_RUNTIME: of_call(out, (const void *)in); break;
    case ACTIVITY_SYNCHRONIZATION: of_sync(out, (const void *)in); break;
    case ACTIVITY_OVERHEAD: of_overhead(out, (const void *)in); break;
    case ACTIVITY_MEMORY2: of_memory(out, (const void *)in); break;
    case ACTIVITY_EXTERNAL_CORRELATION: of_external(out, (const void *)in); break;
    default: return 0;
    }
    return 1;
}

static void empty(const struct cupti *cupti, struct ring_header *ring, int index) {
    uint8_t *buffer = memory + (size_t)index * BUFFER_BYTES;
    struct activity *in = NULL;
    struct record out;
    int rc = CUPTI_OK;
    while (valid_bytes[index] > 0) {
        rc = cupti->cuptiActivityGetNextRecord(buffer, valid_bytes[index], &in);
        if (rc != CUPTI_OK) break;
        if (!convert(&out, in, ring)) continue;
        if (out.kind != RECORD_EXTERNAL && (out.start_ns == 0 || out.end_ns < out.start_ns)) {
            atomic_fetch_add_explicit(&ring->invalid, 1, memory_order_relaxed);
        }
        ring_push(ring, &out, 1);
    }
    if (rc != CUPTI_OK && rc != CUPTI_MAX_LIMIT_REACHED) {
        atomic_fetch_add_explicit(&ring->invalid, 1, memory_order_relaxed);
    }
}

/* Empties the buffers that are complete, in the order in which they were completed. */
void pool_drain(const struct cupti *cupti, struct ring_header *ring) {
    for (;;) {
        int next = -1;
        for (int i = 0; i < BUFFERS; i++) {
            if (atomic_load_explicit(&states[i], memory_order_acquire) == FULL &&
                (next < 0 || finished[i] < finished[next])) {
                next = i;
            }
        }
        if (next < 0) return;
        empty(cupti, ring, next);
        /* CUPTI gets it back cleared, as promised: not in a thread of the program. */
        memset(memory + (size_t)next * BUFFER_BYTES, 0, valid_bytes[next]);
        atomic_store_explicit(&states[next], FREE, memory_order_release);
    }
}
