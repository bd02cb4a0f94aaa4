/* Activity records in full, as the headers of each major version lay them out (12: CUDA 12.9,
 * 13: CUDA 13.5). Members that nothing here fills are bytes. */
#ifndef TRACER_SIM_CUPTI_RECORDS_H
#define TRACER_SIM_CUPTI_RECORDS_H

#include <stdint.h>

enum kind {
    KIND_MEMCPY = 1,
    KIND_MEMSET = 2,
    KIND_DRIVER = 4,
    KIND_CONCURRENT_KERNEL = 10,
    KIND_OVERHEAD = 17,
    KIND_SYNCHRONIZATION = 38,
    KIND_EXTERNAL_CORRELATION = 39,
    KIND_MEMORY2 = 49,
    KIND_GRAPH_TRACE = 51,
    KINDS = 64,
};

enum { RESULT_OK = 0, RESULT_INVALID_PARAMETER = 1, RESULT_INVALID_OPERATION = 7, RESULT_OUT_OF_MEMORY = 8,
       RESULT_NOT_IMPLEMENTED = 11, RESULT_MAX_LIMIT_REACHED = 12, RESULT_QUEUE_EMPTY = 18,
       RESULT_INVALID_KIND = 21,
       RESULT_NOT_SUPPORTED = 27, RESULT_MULTIPLE_SUBSCRIBERS = 39 };

#if CUPTI == 12
#define KERNEL_BYTES 208
#define MEMCPY_BYTES 96
#define MEMSET_BYTES 88
#define VERSION 28
#else
#define KERNEL_BYTES 248
#define MEMCPY_BYTES 112
#define MEMSET_BYTES 104
#define VERSION 130500
#endif

struct kernel_record {
    uint32_t kind;
    uint8_t cache[12];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local[2];
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
    uint8_t latency[24];
    uint32_t launch;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit;
    uint32_t graph;
    uint8_t rest[KERNEL_BYTES - 160];
};

struct memcpy_record {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation, runtime_correlation, pad;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
    uint8_t rest[MEMCPY_BYTES - 76];
};

struct memset_record {
    uint32_t kind, value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream, correlation;
    uint16_t flags, memory_kind;
    uint32_t pad;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
    uint8_t rest[MEMSET_BYTES - 76];
};

struct api_record {
    uint32_t kind, cbid;
    uint64_t start, end;
    uint32_t process, thread, correlation, return_value;
};

struct synchronization_record {
    uint32_t kind, type;
    uint64_t start, end;
    uint32_t correlation, context, stream, event;
    uint8_t rest[16];
};

struct overhead_record {
    uint32_t kind, overhead, object, process, thread, unused;
    uint64_t start, end;
    uint8_t rest[16];
};

struct graph_record {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
    void *reserved;
    uint32_t end_device, end_context;
};

struct memory_record {
    uint32_t kind, operation, memory_kind, correlation;
    uint64_t address, bytes, timestamp, program_counter;
    uint32_t process, device, context, stream;
    const char *name;
    uint32_t is_async, pad;
    uint32_t pool_type, pool_pad;
    uint64_t pool_address, pool_threshold, pool_size, pool_used;
    const char *source;
};

struct external_record {
    uint32_t kind, external_kind;
    uint64_t external;
    uint32_t correlation, reserved;
};

_Static_assert(sizeof(struct kernel_record) == KERNEL_BYTES, "kernel");
_Static_assert(sizeof(struct memcpy_record) == MEMCPY_BYTES, "memcpy");
_Static_assert(sizeof(struct memset_record) == MEMSET_BYTES, "memset");
_Static_assert(sizeof(struct api_record) == 40, "api");
_Static_assert(sizeof(struct synchronization_record) == 56, "synchronization");
_Static_assert(sizeof(struct overhead_record) == 56, "overhead");
_Static_assert(sizeof(struct graph_record) == 56, "graph");
_Static_assert(sizeof(struct memory_record) == 128, "memory");
_Static_assert(sizeof(struct external_record) == 24, "external");

/* records.c; all with the lock of the tracer held */
struct pending {
    uint32_t tag;
    void *record;      /* a place in a buffer */
    struct buffer *in; /* the buffer */
    uint32_t parts;    /* left of a graph */
};

uint32_t record_bytes(uint32_t kind);
void *record_reserve(uint32_t bytes, int is_pending);
void record_await(uint32_t tag, void *record);
void record_await_part(uint32_t tag, void *record, uint32_t parts_left);
void records_settle(void);
void records_deliver(int is_forced);
uint64_t records_dropped(void);
void records_forget(void);
uint64_t record_time(uint64_t time_ns);

typedef void (*request_function)(uint8_t **buffer, uint64_t *size, uint64_t *max_records);
typedef void (*complete_function)(void *context, uint32_t stream, uint8_t *buffer, uint64_t size,
                                  uint64_t valid);
extern request_function on_request;
extern complete_function on_complete;
extern uint64_t (*on_timestamp)(void);
extern int is_zeroed; /* the client promised buffers of zeros */

#endif
