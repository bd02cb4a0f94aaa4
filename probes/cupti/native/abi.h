/* The part of CUPTI's interface that is used, written from its public documentation.
 *
 * Records are read by the fields they begin with: those offsets are the same from CUDA 11.6 to 13,
 * where releases append fields. Nothing here depends on a record's size; CUPTI steps over them. */
#ifndef TRACER_CUPTI_ABI_H
#define TRACER_CUPTI_ABI_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUPTI_OK = 0,
    CUPTI_MAX_LIMIT_REACHED = 12,
    CUPTI_MULTIPLE_SUBSCRIBERS = 39,
};

enum activity_kind {
    ACTIVITY_MEMCPY = 1,
    ACTIVITY_MEMSET = 2,
    ACTIVITY_KERNEL = 3,
    ACTIVITY_DRIVER = 4,
    ACTIVITY_RUNTIME = 5,
    ACTIVITY_CONCURRENT_KERNEL = 10,
    ACTIVITY_OVERHEAD = 17,
    ACTIVITY_MEMCPY2 = 22, /* between devices */
    ACTIVITY_SYNCHRONIZATION = 38,
    ACTIVITY_EXTERNAL_CORRELATION = 39,
    ACTIVITY_MEMORY2 = 49,
    ACTIVITY_GRAPH_TRACE = 51,
};

enum { ATTRIBUTE_POOL_LIMIT = 2, ATTRIBUTE_ZEROED_BUFFERS = 5 };

enum { FLUSH_FORCED = 1, THREAD_ID_SYSTEM = 1, DOMAIN_DRIVER = 1, SITE_EXIT = 1 };

/* The first member of every record. */
struct activity {
    uint32_t kind;
};

struct activity_kernel {
    uint32_t kind;
    uint32_t before_start[3];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared, dynamic_shared;
    uint32_t local_per_thread, local_total;
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
    void *reserved;
    uint64_t queued, submitted;
    uint8_t launch_type, carveout_requested, carveout, padding;
    uint32_t shared_executed;
    uint64_t graph_node;
    uint32_t shared_limit;
    uint32_t graph;
};

struct activity_memcpy {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t correlation, runtime_correlation, padding;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
};

struct activity_memcpy2 {
    uint32_t kind;
    uint8_t copy_kind, source_kind, target_kind, flags;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t source_device, source_context, target_device, target_context;
    uint32_t correlation;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
};

struct activity_memset {
    uint32_t kind;
    uint32_t value;
    uint64_t bytes, start, end;
    uint32_t device, context, stream;
    uint32_t correlation;
    uint16_t flags, memory_kind;
    uint32_t padding;
    void *reserved;
    uint64_t graph_node;
    uint32_t graph;
};

struct activity_api {
    uint32_t kind;
    uint32_t cbid;
    uint64_t start, end;
    uint32_t process, thread;
    uint32_t correlation;
    uint32_t return_value;
};

struct activity_synchronization {
    uint32_t kind;
    uint32_t type;
    uint64_t start, end;
    uint32_t correlation, context, stream, event;
};

struct activity_overhead {
    uint32_t kind;
    uint32_t overhead;
    uint32_t object;
    uint32_t process, thread; /* of an object that is a thread */
    uint32_t unused;
    uint64_t start, end;
};

struct activity_graph {
    uint32_t kind;
    uint32_t correlation;
    uint64_t start, end;
    uint32_t device, graph, context, stream;
};

struct activity_memory {
    uint32_t kind;
    uint32_t operation, memory_kind;
    uint32_t correlation;
    uint64_t address, bytes, timestamp, program_counter;
    uint32_t process, device, context, stream;
    const char *name;
    uint32_t is_async, padding;
    uint32_t pool_type, pool_padding;
    uint64_t pool_address, pool_threshold, pool_size, pool_used;
};

struct activity_external {
    uint32_t kind;
    uint32_t external_kind;
    uint64_t external;
    uint32_t correlation;
};

/* What a callback of an API call gets, as far as it is read. */
struct callback_data {
    uint32_t site;
};

typedef void (*callback_function)(void *user, uint32_t domain, uint32_t id, const void *data);
typedef uint64_t (*timestamp_function)(void);
typedef void (*request_function)(uint8_t **buffer, size_t *size, size_t *max_records);
typedef void (*complete_function)(void *context, uint32_t stream, uint8_t *buffer, size_t size,
                                  size_t valid);

/* Required functions, and those that only newer releases have. */
#define CUPTI_REQUIRED(F)                                                                        \
    F(cuptiGetVersion, (uint32_t *))                                                             \
    F(cuptiSubscribe, (void **, callback_function, void *))                                      \
    F(cuptiUnsubscribe, (void *))                                                                \
    F(cuptiEnableCallback, (uint32_t, void *, uint32_t, uint32_t))                               \
    F(cuptiActivityRegisterTimestampCallback, (timestamp_function))                              \
    F(cuptiActivityRegisterCallbacks, (request_function, complete_function))                     \
    F(cuptiActivityEnable, (uint32_t))                                                           \
    F(cuptiActivityDisable, (uint32_t))                                                          \
    F(cuptiActivityFlushAll, (uint32_t))                                                         \
    F(cuptiActivityGetNextRecord, (uint8_t *, size_t, struct activity **))                       \
    F(cuptiActivityGetNumDroppedRecords, (void *, uint32_t, size_t *))                           \
    F(cuptiSetThreadIdType, (uint32_t))                                                          \
    F(cuptiFinalize, (void))
#define CUPTI_OPTIONAL(F)                                                                        \
    F(cuptiActivitySetAttribute, (uint32_t, size_t *, void *))                                   \
    F(cuptiActivityEnableDriverApi, (uint32_t, uint8_t))                                         \
    F(cuptiActivityEnableRuntimeApi, (uint32_t, uint8_t))

#define CUPTI_MEMBER(NAME, PARAMETERS) int(*NAME) PARAMETERS;
struct cupti {
    CUPTI_REQUIRED(CUPTI_MEMBER)
    CUPTI_OPTIONAL(CUPTI_MEMBER)
};
#undef CUPTI_MEMBER

#endif
