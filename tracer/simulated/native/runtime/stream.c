/* Streams, events, capture and graphs: each call passes on to the driver's. */
#include "runtime.h"

/* NAME(driver, ...) that calls the driver's function with the same arguments. */
#define PASS(NAME, CALL, PARAMS, ...)                                                            \
    static cudaError_t NAME PARAMS { return d->CALL(__VA_ARGS__); }

PASS(stream_create, cuStreamCreate, (const struct driver *d, cudaStream_t *s, unsigned int f), s, f)
PASS(stream_create_priority, cuStreamCreateWithPriority,
     (const struct driver *d, cudaStream_t *s, unsigned int f, int p), s, f, p)
PASS(stream_destroy, cuStreamDestroy, (const struct driver *d, cudaStream_t s), s)
PASS(stream_synchronize, cuStreamSynchronize, (const struct driver *d, cudaStream_t s), s)
PASS(stream_query, cuStreamQuery, (const struct driver *d, cudaStream_t s), s)
PASS(stream_wait, cuStreamWaitEvent,
     (const struct driver *d, cudaStream_t s, cudaEvent_t e, unsigned int f), s, e, f)
PASS(stream_flags, cuStreamGetFlags, (const struct driver *d, cudaStream_t s, unsigned int *f), s,
     f)
PASS(stream_priority, cuStreamGetPriority, (const struct driver *d, cudaStream_t s, int *p), s, p)
PASS(stream_id, cuStreamGetId, (const struct driver *d, cudaStream_t s, unsigned long long *id), s,
     id)
PASS(stream_device, cuStreamGetDevice, (const struct driver *d, cudaStream_t s, int *device), s,
     device)

ONE(cudaStreamCreate, 0, stream_create, (cudaStream_t *s), s, 0)
ONE(cudaStreamCreateWithFlags, 0, stream_create, (cudaStream_t *s, unsigned int f), s, f)
ONE(cudaStreamCreateWithPriority, 0, stream_create_priority,
    (cudaStream_t *s, unsigned int f, int p), s, f, p)
ONE(cudaStreamDestroy, 0, stream_destroy, (cudaStream_t s), s)
PTSZ(cudaStreamSynchronize, stream_synchronize, (cudaStream_t s), s)
PTSZ(cudaStreamQuery, stream_query, (cudaStream_t s), s)
PTSZ(cudaStreamWaitEvent, stream_wait, (cudaStream_t s, cudaEvent_t e, unsigned int f), s, e, f)
PTSZ(cudaStreamGetFlags, stream_flags, (cudaStream_t s, unsigned int *f), s, f)
PTSZ(cudaStreamGetPriority, stream_priority, (cudaStream_t s, int *p), s, p)
PTSZ(cudaStreamGetId, stream_id, (cudaStream_t s, unsigned long long *id), s, id)
PTSZ(cudaStreamGetDevice, stream_device, (cudaStream_t s, int *device), s, device)

PASS(event_create, cuEventCreate, (const struct driver *d, cudaEvent_t *e, unsigned int f), e, f)
PASS(event_destroy, cuEventDestroy, (const struct driver *d, cudaEvent_t e), e)
PASS(event_record, cuEventRecord, (const struct driver *d, cudaEvent_t e, cudaStream_t s), e, s)
PASS(event_record_flags, cuEventRecordWithFlags,
     (const struct driver *d, cudaEvent_t e, cudaStream_t s, unsigned int f), e, s, f)
PASS(event_query, cuEventQuery, (const struct driver *d, cudaEvent_t e), e)
PASS(event_synchronize, cuEventSynchronize, (const struct driver *d, cudaEvent_t e), e)
PASS(event_elapsed, cuEventElapsedTime,
     (const struct driver *d, float *ms, cudaEvent_t a, cudaEvent_t b), ms, a, b)

ONE(cudaEventCreate, 0, event_create, (cudaEvent_t *e), e, 0)
ONE(cudaEventCreateWithFlags, 0, event_create, (cudaEvent_t *e, unsigned int f), e, f)
ONE(cudaEventDestroy, 0, event_destroy, (cudaEvent_t e), e)
PTSZ(cudaEventRecord, event_record, (cudaEvent_t e, cudaStream_t s), e, s)
PTSZ(cudaEventRecordWithFlags, event_record_flags, (cudaEvent_t e, cudaStream_t s, unsigned int f),
     e, s, f)
ONE(cudaEventQuery, 0, event_query, (cudaEvent_t e), e)
ONE(cudaEventSynchronize, 0, event_synchronize, (cudaEvent_t e), e)
ONE(cudaEventElapsedTime, 0, event_elapsed, (float *ms, cudaEvent_t a, cudaEvent_t b), ms, a, b)
#if RUNTIME < 13
ONE(cudaEventElapsedTime_v2, 0, event_elapsed, (float *ms, cudaEvent_t a, cudaEvent_t b), ms, a, b)
#endif

PASS(begin_capture, cuStreamBeginCapture, (const struct driver *d, cudaStream_t s, int m), s, m)
PASS(end_capture, cuStreamEndCapture, (const struct driver *d, cudaStream_t s, cudaGraph_t *g), s,
     g)
PASS(is_capturing, cuStreamIsCapturing, (const struct driver *d, cudaStream_t s, int *status), s,
     status)
PASS(capture_info, cuStreamGetCaptureInfo,
     (const struct driver *d, cudaStream_t s, int *status, unsigned long long *id, cudaGraph_t *g,
      const void **deps, const void **edges, size_t *n),
     s, status, id, g, deps, edges, n)
PASS(exchange_mode, cuThreadExchangeStreamCaptureMode, (const struct driver *d, int *mode), mode)

PTSZ(cudaStreamBeginCapture, begin_capture, (cudaStream_t s, int mode), s, mode)
PTSZ(cudaStreamEndCapture, end_capture, (cudaStream_t s, cudaGraph_t *g), s, g)
PTSZ(cudaStreamIsCapturing, is_capturing, (cudaStream_t s, int *status), s, status)
ONE(cudaThreadExchangeStreamCaptureMode, 0, exchange_mode, (int *mode), mode)
#if RUNTIME >= 13
PTSZ(cudaStreamGetCaptureInfo, capture_info,
     (cudaStream_t s, int *status, unsigned long long *id, cudaGraph_t *g, const void **deps,
      const void **edges, size_t *n),
     s, status, id, g, deps, edges, n)
#else
PTSZ(cudaStreamGetCaptureInfo, capture_info,
     (cudaStream_t s, int *status, unsigned long long *id), s, status, id, NULL, NULL, NULL, NULL)
PTSZ(cudaStreamGetCaptureInfo_v3, capture_info,
     (cudaStream_t s, int *status, unsigned long long *id, cudaGraph_t *g, const void **deps,
      const void **edges, size_t *n),
     s, status, id, g, deps, edges, n)
PTSZ(cudaStreamGetCaptureInfo_v2, capture_info,
     (cudaStream_t s, int *status, unsigned long long *id, cudaGraph_t *g, const void **deps,
      size_t *n),
     s, status, id, g, deps, NULL, n)
#endif

PASS(graph_create, cuGraphCreate, (const struct driver *d, cudaGraph_t *g, unsigned int f), g, f)
PASS(graph_destroy, cuGraphDestroy, (const struct driver *d, cudaGraph_t g), g)
PASS(graph_nodes, cuGraphGetNodes, (const struct driver *d, cudaGraph_t g, void **n, size_t *c), g,
     n, c)
PASS(instantiate, cuGraphInstantiateWithFlags,
     (const struct driver *d, cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f), e, g, f)
PASS(instantiate_params, cuGraphInstantiateWithParams,
     (const struct driver *d, cudaGraphExec_t *e, cudaGraph_t g, void *p), e, g, p)
PASS(exec_update, cuGraphExecUpdate,
     (const struct driver *d, cudaGraphExec_t e, cudaGraph_t g, void *r), e, g, r)
PASS(exec_destroy, cuGraphExecDestroy, (const struct driver *d, cudaGraphExec_t e), e)
PASS(graph_upload, cuGraphUpload, (const struct driver *d, cudaGraphExec_t e, cudaStream_t s), e, s)
PASS(graph_launch, cuGraphLaunch, (const struct driver *d, cudaGraphExec_t e, cudaStream_t s), e, s)

ONE(cudaGraphCreate, 0, graph_create, (cudaGraph_t *g, unsigned int f), g, f)
ONE(cudaGraphDestroy, 0, graph_destroy, (cudaGraph_t g), g)
ONE(cudaGraphGetNodes, 0, graph_nodes, (cudaGraph_t g, void **nodes, size_t *n), g, nodes, n)
ONE(cudaGraphInstantiate, 0, instantiate,
    (cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f), e, g, f)
ONE(cudaGraphInstantiateWithFlags, 0, instantiate,
    (cudaGraphExec_t *e, cudaGraph_t g, unsigned long long f), e, g, f)
PTSZ(cudaGraphInstantiateWithParams, instantiate_params,
     (cudaGraphExec_t *e, cudaGraph_t g, void *p), e, g, p)
ONE(cudaGraphExecUpdate, 0, exec_update, (cudaGraphExec_t e, cudaGraph_t g, void *r), e, g, r)
ONE(cudaGraphExecDestroy, 0, exec_destroy, (cudaGraphExec_t e), e)
PTSZ(cudaGraphUpload, graph_upload, (cudaGraphExec_t e, cudaStream_t s), e, s)
PTSZ(cudaGraphLaunch, graph_launch, (cudaGraphExec_t e, cudaStream_t s), e, s)
