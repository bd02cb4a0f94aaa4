/* The functions of the simulated libcupti. Stricter than the real one where a mistake of a client
 * would go unnoticed there. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../core/hooks.h"
#include "records.h"
#include "tracing.h"

int planned_failure(const char *function) {
    const char *plan = getenv("TRACER_SIM_CUPTI_FAIL");
    size_t n = strlen(function);
    for (const char *at = plan; at != NULL && *at != 0; at = strchr(at, ',')) {
        if (*at == ',') at++;
        if (strncmp(at, function, n) == 0 && at[n] == '=') return atoi(at + n + 1);
    }
    return 0;
}

#define BEGIN                                                                                    \
    int planned = planned_failure(__func__);                                                     \
    if (planned != 0) return planned;

static int unknown_kind(uint32_t kind) {
    /* Kinds that a client may enable and that nothing here produces. */
    static const uint8_t silent[] = {3, 5, 8, 9, 12, 22, 37, 45};
    for (size_t i = 0; i < sizeof silent; i++) {
        if (silent[i] == kind) return 0;
    }
    return record_bytes(kind) == 0;
}

API int cuptiGetVersion(uint32_t *version) {
    BEGIN
    if (version == NULL) return RESULT_INVALID_PARAMETER;
    *version = VERSION;
    return RESULT_OK;
}

API int cuptiGetTimestamp(uint64_t *time) {
    BEGIN
    if (time == NULL) return RESULT_INVALID_PARAMETER;
    *time = record_time(sim_clock_ns());
    return RESULT_OK;
}

API int cuptiSubscribe(void **subscriber, void (*callback)(void *, uint32_t, uint32_t, const void *),
                       void *user) {
    BEGIN
    if (subscriber == NULL) return RESULT_INVALID_PARAMETER;
    tracing_lock();
    if (tracing.callback != NULL) {
        tracing_unlock();
        return RESULT_MULTIPLE_SUBSCRIBERS;
    }
    tracing.callback = callback;
    tracing.user = user;
    tracing_unlock();
    *subscriber = &tracing;
    return RESULT_OK;
}

API int cuptiUnsubscribe(void *subscriber) {
    BEGIN
    if (subscriber != &tracing || tracing.callback == NULL) return RESULT_INVALID_PARAMETER;
    tracing_lock();
    tracing.callback = NULL;
    memset(tracing.callbacks, 0, sizeof tracing.callbacks);
    tracing_update();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiEnableCallback(uint32_t enable, void *subscriber, uint32_t domain, uint32_t cbid) {
    BEGIN
    if (subscriber != &tracing || tracing.callback == NULL || domain == 0 || cbid >= 1024) {
        return RESULT_INVALID_PARAMETER;
    }
    if (domain != 1) return RESULT_OK;
    tracing_lock();
    tracing.callbacks[cbid] = enable != 0;
    tracing_update();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiSetThreadIdType(uint32_t type) {
    BEGIN
    if (type > 1) return RESULT_NOT_SUPPORTED;
    tracing.is_system_thread = type == 1;
    return RESULT_OK;
}

API int cuptiActivityRegisterTimestampCallback(uint64_t (*callback)(void)) {
    BEGIN
    if (callback == NULL) return RESULT_INVALID_PARAMETER;
    for (int i = 0; i < KINDS; i++) {
        if (tracing.kinds[i]) return RESULT_INVALID_OPERATION; /* records would mix two clocks */
    }
    on_timestamp = callback;
    return RESULT_OK;
}

API int cuptiActivityRegisterCallbacks(request_function request, complete_function complete) {
    BEGIN
    if (request == NULL || complete == NULL) return RESULT_INVALID_PARAMETER;
    tracing_lock();
    on_request = request;
    on_complete = complete;
    tracing_unlock();
    return RESULT_OK;
}

static int set_kind(uint32_t kind, uint8_t value) {
    if (unknown_kind(kind)) return RESULT_INVALID_KIND;
    if (on_complete == NULL) return RESULT_INVALID_OPERATION;
    tracing_lock();
    tracing.kinds[kind] = value;
    tracing_update();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiActivityEnable(uint32_t kind) {
    BEGIN
    return set_kind(kind, 1);
}

API int cuptiActivityDisable(uint32_t kind) {
    BEGIN
    return set_kind(kind, 0);
}

API int cuptiActivityEnableDriverApi(uint32_t cbid, uint8_t enable) {
    BEGIN
    if (cbid >= 1024) return RESULT_INVALID_PARAMETER;
    tracing_lock();
    tracing.calls[cbid] = enable != 0;
    tracing_update();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiActivityEnableRuntimeApi(uint32_t cbid, uint8_t enable) {
    BEGIN
    (void)enable;
    return cbid < 1024 ? RESULT_OK : RESULT_INVALID_PARAMETER;
}

API int cuptiActivitySetAttribute(uint32_t attribute, size_t *size, void *value) {
    BEGIN
    if (size == NULL || value == NULL) return RESULT_INVALID_PARAMETER;
    if (attribute == 5) {
        if (*size != sizeof(uint8_t)) return RESULT_INVALID_PARAMETER;
        is_zeroed = *(uint8_t *)value != 0;
        return RESULT_OK;
    }
    return *size == sizeof(size_t) ? RESULT_OK : RESULT_INVALID_PARAMETER;
}

static void catch_up(void) {
    struct sim_handle *h = sim_from_environment();
    if (h != NULL && sim_lock(h) == 0) {
        sim_advance(h, sim_clock_ns());
        sim_unlock(h);
    }
    records_settle();
}

API int cuptiActivityFlushAll(uint32_t flag) {
    BEGIN
    if (on_complete == NULL) return RESULT_INVALID_OPERATION;
    tracing_lock();
    catch_up();
    records_deliver((flag & 1) != 0);
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiActivityFlushPeriod(uint32_t ms) {
    BEGIN
    (void)ms;
    return RESULT_OK;
}

API int cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, uint8_t **record) {
    uint8_t *next;
    uint32_t bytes;
    BEGIN
    if (buffer == NULL || record == NULL) return RESULT_INVALID_PARAMETER;
    next = *record == NULL ? buffer : *record + record_bytes(*(uint32_t *)*record);
    if (next >= buffer + valid) return RESULT_MAX_LIMIT_REACHED;
    bytes = record_bytes(*(uint32_t *)next);
    if (bytes == 0 || next + bytes > buffer + valid) return RESULT_INVALID_KIND;
    *record = next;
    return RESULT_OK;
}

API int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *dropped) {
    BEGIN
    (void)context, (void)stream;
    if (dropped == NULL) return RESULT_INVALID_PARAMETER;
    tracing_lock();
    *dropped = records_dropped();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiActivityPushExternalCorrelationId(uint32_t kind, uint64_t id) {
    BEGIN
    if (kind == 0 || kind >= EXTERNAL_KINDS) return RESULT_INVALID_PARAMETER;
    return external_push(kind, id) ? RESULT_OK : RESULT_OUT_OF_MEMORY;
}

API int cuptiActivityPopExternalCorrelationId(uint32_t kind, uint64_t *last) {
    BEGIN
    if (kind == 0 || kind >= EXTERNAL_KINDS) return RESULT_INVALID_PARAMETER;
    return external_pop(kind, last) ? RESULT_OK : RESULT_QUEUE_EMPTY;
}

API int cuptiFinalize(void) {
    BEGIN
    tracing_lock();
    if (on_complete != NULL) records_forget();
    on_request = NULL;
    on_complete = NULL;
    on_timestamp = NULL;
    is_zeroed = 0;
    memset(&tracing, 0, sizeof tracing);
    tracing_update();
    tracing_unlock();
    return RESULT_OK;
}

API int cuptiGetResultString(int result, const char **text) {
    static const char *const texts[] = {[0] = "CUPTI_SUCCESS", [1] = "CUPTI_ERROR_INVALID_PARAMETER"};
    if (text == NULL || result < 0 || (size_t)result >= sizeof texts / sizeof texts[0]) {
        return RESULT_INVALID_PARAMETER;
    }
    *text = texts[result];
    return RESULT_OK;
}

/* For the functions of the list that nothing here implements. */
int refuse(const char *name, int *said) {
    if (!__sync_lock_test_and_set(said, 1)) {
        fprintf(stderr, "tracer: the simulated libcupti does not implement %s.\n", name);
    }
    return RESULT_NOT_IMPLEMENTED;
}
