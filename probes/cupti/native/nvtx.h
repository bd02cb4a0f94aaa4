/* The part of NVTX's interface to tools that is used, written from its public documentation.
 *
 * NVTX is compiled into each library that names ranges. At the first use it asks the library of
 * NVTX_INJECTION64_PATH for functions, and calls them from then on. */
#ifndef TRACER_CUPTI_NVTX_H
#define TRACER_CUPTI_NVTX_H

#include <stddef.h>
#include <stdint.h>

enum { NVTX_TABLE_CALLBACKS = 1 };

enum nvtx_module { NVTX_MODULE_CORE = 1, NVTX_MODULE_CORE2 = 5 };

enum nvtx_core {
    NVTX_RANGE_START_EX = 4,
    NVTX_RANGE_START_A = 5,
    NVTX_RANGE_START_W = 6,
    NVTX_RANGE_END = 7,
    NVTX_RANGE_PUSH_EX = 8,
    NVTX_RANGE_PUSH_A = 9,
    NVTX_RANGE_PUSH_W = 10,
    NVTX_RANGE_POP = 11,
};

enum nvtx_core2 {
    NVTX_DOMAIN_RANGE_START_EX = 2,
    NVTX_DOMAIN_RANGE_END = 3,
    NVTX_DOMAIN_RANGE_PUSH_EX = 4,
    NVTX_DOMAIN_RANGE_POP = 5,
    NVTX_DOMAIN_REGISTER_STRING_A = 10,
    NVTX_DOMAIN_REGISTER_STRING_W = 11,
    NVTX_DOMAIN_CREATE_A = 12,
    NVTX_DOMAIN_CREATE_W = 13,
};

enum nvtx_message { NVTX_MESSAGE_ASCII = 1, NVTX_MESSAGE_UNICODE = 2, NVTX_MESSAGE_REGISTERED = 3 };

/* What a range is told with; a later release may append. */
struct nvtx_attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type;
    int32_t reserved;
    uint64_t payload;
    int32_t message_type;
    uint32_t padding;
    const void *message;
};

typedef void (*nvtx_function)(void);

struct nvtx_callbacks {
    size_t bytes;
    int (*functions_of)(int module, nvtx_function ***table, unsigned int *n);
};

typedef const void *(*nvtx_tables)(uint32_t table);

#endif
