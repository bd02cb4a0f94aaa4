/* Ranges that the program names with NVTX.
 *
 * They are timed here, in the program's threads, and go through a bounded queue to the helper
 * thread. Nothing here locks, waits or calls into CUPTI: without room a range is counted as lost.
 * While nothing is collected a range costs two counters and is forgotten. */
#define _GNU_SOURCE
#include "collector.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <wchar.h>

#include "nvtx.h"

#define QUEUE 8192
#define DEPTH 32
#define OPEN 512
#define OPEN_TRIES 8
#define TEXT_POOL (1u << 20)

/* A range that has ended; `turn` counts from the slot's own place, so that zeros are a fresh one. */
struct ended {
    _Atomic uint64_t turn;
    uint64_t start_ns, end_ns;
    uint32_t thread;
    char text[RANGE_TEXT];
};

/* A range that was pushed and not popped; without a start it began while nothing was collected. */
struct frame {
    uint64_t start_ns;
    const void *domain;
    char text[RANGE_TEXT];
};

/* A range that was started and not ended, maybe by another thread. */
struct opened {
    _Atomic uint64_t id; /* 0: free; OPEN_BUSY: being written */
    uint64_t start_ns;
    uint32_t thread;
    char text[RANGE_TEXT];
};

#define OPEN_BUSY 1ULL

static struct area {
    struct ended queue[QUEUE];
    struct opened open[OPEN];
    char texts[TEXT_POOL]; /* registered strings and names of domains */
} *area;
static _Atomic(struct area *) published;
static _Atomic int is_on;
static _Atomic uint64_t on_since; /* when collection began: what began before is not taken */
static _Atomic uint64_t queue_tail, lost, next_id = 2;
static _Atomic uint32_t texts_used;
static uint64_t queue_head; /* of the helper thread */

static __thread struct {
    uint32_t thread, depth;
    struct frame frames[DEPTH];
} own;

static uint32_t thread_id(void) {
    if (own.thread == 0) own.thread = (uint32_t)syscall(SYS_gettid);
    return own.thread;
}

/* Copies what fits, cut between characters. */
static void copy_ascii(char *out, const char *in) {
    size_t n = in == NULL ? 0 : strnlen(in, RANGE_TEXT);
    if (n == RANGE_TEXT) {
        n--;
        while (n > 0 && ((unsigned char)in[n] & 0xc0) == 0x80) n--;
    }
    memcpy(out, in == NULL ? "" : in, n);
    out[n] = 0;
}

static void copy_wide(char *out, const wchar_t *in) {
    size_t n = 0;
    for (; in != NULL && *in != 0 && n + 4 < RANGE_TEXT; in++) {
        uint32_t c = (uint32_t)*in;
        if (c < 0x80) {
            out[n++] = (char)c;
        } else if (c < 0x800) {
            out[n++] = (char)(0xc0 | c >> 6);
            out[n++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            out[n++] = (char)(0xe0 | c >> 12);
            out[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            out[n++] = (char)(0x80 | (c & 0x3f));
        } else {
            out[n++] = (char)(0xf0 | (c >> 18 & 7));
            out[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            out[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            out[n++] = (char)(0x80 | (c & 0x3f));
        }
    }
    out[n] = 0;
}

static void copy_message(char *out, const struct nvtx_attributes *in) {
    const char *registered;
    out[0] = 0;
    if (in == NULL || in->size < sizeof *in) return;
    switch (in->message_type) {
    case NVTX_MESSAGE_ASCII: copy_ascii(out, in->message); break;
    case NVTX_MESSAGE_UNICODE: copy_wide(out, in->message); break;
    case NVTX_MESSAGE_REGISTERED:
        registered = in->message;
        if (registered >= area->texts && registered < area->texts + TEXT_POOL) {
            copy_ascii(out, registered);
        }
        break;
    default: break;
    }
}

/* A lasting copy of a text, whose address is the handle; NULL without room. */
static const char *keep(const char *text) {
    uint32_t n = (uint32_t)strlen(text) + 1;
    uint32_t at = atomic_load(&texts_used);
    do {
        if (at + n > TEXT_POOL) return NULL;
    } while (!atomic_compare_exchange_weak(&texts_used, &at, at + n));
    memcpy(area->texts + at, text, n);
    return area->texts + at;
}

static void lose(void) { atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed); }

static void put(uint64_t start_ns, uint32_t thread, const char *text) {
    uint64_t at = atomic_load_explicit(&queue_tail, memory_order_relaxed);
    if (start_ns < atomic_load_explicit(&on_since, memory_order_relaxed)) return;
    for (;;) {
        struct ended *e = &area->queue[at % QUEUE];
        uint64_t turn = atomic_load_explicit(&e->turn, memory_order_acquire) + at % QUEUE;
        if (turn == at) {
            if (!atomic_compare_exchange_weak(&queue_tail, &at, at + 1)) continue;
            e->start_ns = start_ns;
            e->end_ns = monotonic_ns();
            e->thread = thread;
            memcpy(e->text, text, RANGE_TEXT);
            atomic_store_explicit(&e->turn, at + 1 - at % QUEUE, memory_order_release);
            return;
        }
        if (turn < at) {
            lose();
            return;
        }
        at = atomic_load_explicit(&queue_tail, memory_order_relaxed);
    }
}

/* The next frame of this thread; NULL for one that is too deep or not collected. */
static struct frame *push(const void *domain) {
    uint32_t depth = own.depth++;
    int wanted = atomic_load_explicit(&is_on, memory_order_relaxed);
    if (depth >= DEPTH) {
        if (wanted) lose();
        return NULL;
    }
    own.frames[depth].domain = domain;
    own.frames[depth].start_ns = 0;
    return wanted ? &own.frames[depth] : NULL;
}

static int begun(struct frame *frame) {
    if (frame != NULL) frame->start_ns = monotonic_ns();
    return (int)own.depth - 1;
}

/* Ends the innermost range of a domain on this thread; its level, or -1 without one. */
static int pop(const void *domain) {
    uint32_t at;
    if (own.depth == 0) return -1;
    if (own.depth > DEPTH) return (int)--own.depth;
    for (at = own.depth; at > 0 && own.frames[at - 1].domain != domain; at--) {}
    if (at == 0) return -1;
    at--;
    if (own.frames[at].start_ns != 0 && atomic_load_explicit(&is_on, memory_order_relaxed)) {
        put(own.frames[at].start_ns, thread_id(), own.frames[at].text);
    }
    own.depth--;
    memmove(&own.frames[at], &own.frames[at + 1], (own.depth - at) * sizeof own.frames[0]);
    return (int)at;
}

static struct opened *claim(uint64_t *id) {
    uint64_t number;
    if (!atomic_load_explicit(&is_on, memory_order_relaxed)) return NULL;
    number = atomic_fetch_add(&next_id, 1);
    for (uint64_t i = 0; i < OPEN_TRIES; i++) {
        uint64_t slot = (number + i) % OPEN, expected = 0;
        if (atomic_compare_exchange_strong(&area->open[slot].id, &expected, OPEN_BUSY)) {
            *id = number * OPEN + slot;
            return &area->open[slot];
        }
    }
    lose();
    return NULL;
}

static uint64_t started(struct opened *o, uint64_t id) {
    if (o == NULL) return 0;
    o->thread = thread_id();
    o->start_ns = monotonic_ns();
    atomic_store_explicit(&o->id, id, memory_order_release);
    return id;
}

static void on_end(uint64_t id) {
    struct opened *o = &area->open[id % OPEN];
    if (id <= OPEN_BUSY || !atomic_compare_exchange_strong(&o->id, &id, OPEN_BUSY)) return;
    if (atomic_load_explicit(&is_on, memory_order_relaxed)) put(o->start_ns, o->thread, o->text);
    atomic_store_explicit(&o->id, 0, memory_order_release);
}

#define PUSH(DOMAIN, COPY)                                                                       \
    struct frame *frame = push(DOMAIN);                                                          \
    if (frame != NULL) COPY(frame->text, message);                                               \
    return begun(frame);
#define START(COPY)                                                                              \
    uint64_t id = 0;                                                                             \
    struct opened *o = claim(&id);                                                               \
    if (o != NULL) COPY(o->text, message);                                                       \
    return started(o, id);

static int on_push_a(const char *message) { PUSH(NULL, copy_ascii) }
static int on_push_w(const wchar_t *message) { PUSH(NULL, copy_wide) }
static int on_push(const struct nvtx_attributes *message) { PUSH(NULL, copy_message) }
static int on_domain_push(const void *domain, const struct nvtx_attributes *message) {
    PUSH(domain, copy_message)
}
static int on_pop(void) { return pop(NULL); }
static int on_domain_pop(const void *domain) { return pop(domain); }
static uint64_t on_start_a(const char *message) { START(copy_ascii) }
static uint64_t on_start_w(const wchar_t *message) { START(copy_wide) }
static uint64_t on_start(const struct nvtx_attributes *message) { START(copy_message) }
static uint64_t on_domain_start(const void *domain, const struct nvtx_attributes *message) {
    (void)domain;
    START(copy_message)
}
static void on_domain_end(const void *domain, uint64_t id) {
    (void)domain;
    on_end(id);
}
static const void *on_text_a(const char *text) {
    char copy[RANGE_TEXT];
    copy_ascii(copy, text);
    return keep(copy);
}
static const void *on_text_w(const wchar_t *text) {
    char copy[RANGE_TEXT];
    copy_wide(copy, text);
    return keep(copy);
}
static const void *on_register_a(const void *domain, const char *text) {
    (void)domain;
    return on_text_a(text);
}
static const void *on_register_w(const void *domain, const wchar_t *text) {
    (void)domain;
    return on_text_w(text);
}

struct entry {
    unsigned int id;
    nvtx_function function;
};

#define ENTRY(ID, FUNCTION) {ID, (nvtx_function)FUNCTION}
static const struct entry core[] = {
    ENTRY(NVTX_RANGE_START_EX, on_start), ENTRY(NVTX_RANGE_START_A, on_start_a),
    ENTRY(NVTX_RANGE_START_W, on_start_w), ENTRY(NVTX_RANGE_END, on_end),
    ENTRY(NVTX_RANGE_PUSH_EX, on_push), ENTRY(NVTX_RANGE_PUSH_A, on_push_a),
    ENTRY(NVTX_RANGE_PUSH_W, on_push_w), ENTRY(NVTX_RANGE_POP, on_pop),
};
static const struct entry core2[] = {
    ENTRY(NVTX_DOMAIN_RANGE_START_EX, on_domain_start),
    ENTRY(NVTX_DOMAIN_RANGE_END, on_domain_end),
    ENTRY(NVTX_DOMAIN_RANGE_PUSH_EX, on_domain_push),
    ENTRY(NVTX_DOMAIN_RANGE_POP, on_domain_pop),
    ENTRY(NVTX_DOMAIN_REGISTER_STRING_A, on_register_a),
    ENTRY(NVTX_DOMAIN_REGISTER_STRING_W, on_register_w),
    ENTRY(NVTX_DOMAIN_CREATE_A, on_text_a), ENTRY(NVTX_DOMAIN_CREATE_W, on_text_w),
};

static int put_functions(const struct nvtx_callbacks *callbacks, enum nvtx_module module,
                         const struct entry *entries, size_t n) {
    nvtx_function **table = NULL;
    unsigned int size = 0;
    if (!callbacks->functions_of(module, &table, &size) || table == NULL) return -1;
    for (size_t i = 0; i < n; i++) {
        if (entries[i].id < size && table[entries[i].id] != NULL) {
            *table[entries[i].id] = entries[i].function;
        }
    }
    return 0;
}

/* Called by each copy of NVTX in the program at its first use; 0 has it left alone for good. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(nvtx_tables tables) {
    const struct nvtx_callbacks *callbacks = tables == NULL ? NULL : tables(NVTX_TABLE_CALLBACKS);
    struct area *none = NULL;
    if (callbacks == NULL || callbacks->bytes < sizeof *callbacks) return 0;
    if (atomic_load(&published) == NULL) {
        struct area *fresh = mmap(NULL, sizeof *fresh, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) return 0;
        if (!atomic_compare_exchange_strong(&published, &none, fresh)) {
            munmap(fresh, sizeof *fresh);
        }
    }
    area = atomic_load(&published);
    if (put_functions(callbacks, NVTX_MODULE_CORE, core, sizeof core / sizeof core[0]) != 0) return 0;
    put_functions(callbacks, NVTX_MODULE_CORE2, core2, sizeof core2 / sizeof core2[0]);
    return 1;
}

/* From any thread, also in a forked child. */
void ranges_switch(int on) {
    if (on) atomic_store(&on_since, monotonic_ns());
    atomic_store(&is_on, on);
}

static void push_text(struct ring_header *ring, const struct ended *e) {
    struct range_record out[2] = {
        {.start_ns = e->start_ns, .end_ns = e->end_ns, .kind = RECORD_RANGE, .thread = e->thread}};
    size_t n = strnlen(e->text, RANGE_TEXT), first = n < RANGE_HEAD ? n : RANGE_HEAD;
    memcpy(out[0].text, e->text, first);
    out[1].kind = RECORD_RANGE_TEXT;
    memcpy(out[1].text, e->text + first, n - first);
    ring_push(ring, (const struct record *)out, n > RANGE_HEAD ? 2 : 1);
}

/* Hands over what has ended, or forgets it without a ring; by the helper thread. */
void ranges_drain(struct ring_header *ring) {
    struct area *a = atomic_load(&published);
    uint64_t n_lost;
    for (int i = 0; a != NULL && i < QUEUE; i++) {
        struct ended *e = &a->queue[queue_head % QUEUE];
        uint64_t place = queue_head % QUEUE;
        if (atomic_load_explicit(&e->turn, memory_order_acquire) + place != queue_head + 1) break;
        if (ring != NULL) push_text(ring, e);
        atomic_store_explicit(&e->turn, queue_head + QUEUE - place, memory_order_release);
        queue_head++;
    }
    n_lost = atomic_exchange(&lost, 0);
    if (ring != NULL) atomic_fetch_add(&ring->lost_ranges, n_lost);
}
