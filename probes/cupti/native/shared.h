/* What the library in the program and the recorder share: two kinds of files in one directory.
 *
 * `control` is written by the recorder. `ring-...` is made by each process: a header, the names,
 * then records. The process writes `head` and the counters, the recorder `tail`; a record is
 * overwritten only after the recorder has passed it. The layouts are repeated in ring.py. */
#ifndef TRACER_CUPTI_SHARED_H
#define TRACER_CUPTI_SHARED_H

#include <stdatomic.h>
#include <stdint.h>

#define CONTROL_MAGIC 0x7472636374726c31ULL
#define RING_MAGIC 0x74726372696e6732ULL
#define CONTROL_BYTES 4096
#define HEADER_BYTES 4096
#define PATH_BYTES 1024
#define DEVICES 16
/* Bytes of a range's name with its end; the first record of a range holds RANGE_HEAD of them. */
#define RANGE_TEXT 88
#define RANGE_HEAD 44

enum control_mode { MODE_ON = 1, MODE_GRAPH_NODES = 2 };

struct control {
    uint64_t magic;
    _Atomic uint32_t changes; /* counts changes of `mode`; a futex */
    _Atomic uint32_t mode;
    _Atomic uint64_t beat_ns; /* when the recorder last drained, CLOCK_MONOTONIC */
    uint32_t flush_ms;        /* between two flushes while it is on */
    uint32_t n_records;       /* of each ring, a power of two */
    uint32_t names_bytes;     /* of each ring */
    uint32_t pad;
    char library[PATH_BYTES]; /* libcupti to use; empty to look for it */
};

enum ring_state { RING_OFF = 0, RING_ON = 1, RING_FAILED = 2, RING_ENDED = 3 };

/* Where something failed: `error` is then CUPTI's code, or 0. */
enum ring_site {
    SITE_NONE = 0,
    SITE_LIBRARY = 1, /* no libcupti was found */
    SITE_VERSION = 2, /* only one of another major version */
    SITE_SYMBOLS = 3,
    SITE_SUBSCRIBE = 4,
    SITE_TIMESTAMP = 5,
    SITE_BUFFERS = 6,
    SITE_ENABLE = 7,
    SITE_MEMORY = 8,
};

struct ring_header {
    uint64_t magic;
    uint32_t record_bytes, n_records, names_bytes;
    int32_t pid; /* as the process sees itself */
    uint64_t start_ticks;
    uint64_t attached_ns;
    uint32_t is_early; /* collection began before the process could give any work */
    uint32_t pad;
    _Atomic uint32_t state, site, error, cupti_version;
    _Atomic uint64_t on_ns;     /* when collection last began */
    _Atomic uint64_t off_ns;    /* when everything up to it was delivered; 0 while it is on */
    _Atomic uint64_t helper_ns; /* CPU time of the helper thread */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t lost_ring;     /* no room in the ring */
    _Atomic uint64_t lost_cupti;                 /* dropped by CUPTI, without a buffer */
    _Atomic uint64_t lost_names;                 /* no room for a name: the record has none */
    _Atomic uint64_t invalid;                    /* without times, or cut off */
    _Atomic uint64_t names_used;
    _Atomic uint64_t lost_ranges; /* no room in the queue, or nested too deep */
    _Atomic uint32_t n_forked;    /* children that were forked after CUDA was used */
    uint32_t pad3;
    _Atomic uint32_t n_devices;
    uint32_t pad2;
    uint8_t uuid[DEVICES][16];
    char library[PATH_BYTES];
};

enum record_kind {
    RECORD_KERNEL = 1,
    RECORD_COPY = 2,
    RECORD_SET = 3,
    RECORD_GRAPH = 4,
    RECORD_CALL = 5,
    RECORD_SYNC = 6,
    RECORD_OVERHEAD = 7,
    RECORD_MEMORY = 8,
    RECORD_EXTERNAL = 9, /* no times; `bytes` is the program's number, `detail` whose */
    RECORD_RANGE = 10,   /* laid out as struct range_record */
    RECORD_RANGE_TEXT = 11, /* the rest of the name of the range before it */
};

struct record {
    uint64_t start_ns, end_ns;
    uint64_t bytes;
    uint32_t kind;
    uint32_t correlation;
    uint32_t device, context, stream;
    uint32_t name; /* offset of a name in bytes, 0 for none */
    uint32_t grid[3], block[3]; /* of memory: its address, and what its pool holds */
    uint32_t graph;
    uint32_t thread;
    uint32_t detail; /* id of a call, type of a sync, kind of an overhead, copy or memory */
    uint8_t source_kind, target_kind;
    uint16_t pad;
};

struct range_record {
    uint64_t start_ns, end_ns;
    uint64_t unused;
    uint32_t kind;
    uint32_t unused2;
    char text[RANGE_HEAD];
    uint32_t thread;
    uint32_t unused3[2];
};

_Static_assert(sizeof(struct control) <= CONTROL_BYTES, "control");
_Static_assert(sizeof(struct ring_header) <= HEADER_BYTES, "header");
_Static_assert(sizeof(struct record) == 88, "record");
_Static_assert(sizeof(struct range_record) == sizeof(struct record), "range");

#endif
