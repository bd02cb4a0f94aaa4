/* The shared state of the simulated machine: one file, mapped by every process that uses it.
 *
 * Everything lives under one robust mutex except what producers publish without it: a stream's
 * `tail` and the operation slots before it, which only the process that owns the stream writes.
 * Times are CLOCK_MONOTONIC nanoseconds. Durations are nanoseconds at nominal clocks.
 */
#ifndef TRACER_SIM_STATE_H
#define TRACER_SIM_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#define SIM_MAGIC 0x7472616365723035ULL
#define SIM_DEVICES 8
#define SIM_CLIENTS 64
#define SIM_STREAMS 768
#define SIM_RING 1024
#define SIM_EVENTS 32768
#define SIM_COLLECTIVES 256
#define SIM_KERNELS 4096
#define SIM_NAME 112
#define SIM_BUCKET_NS 10000000ULL
#define SIM_BUCKETS 1024
#define SIM_CLIENT_BUCKETS 256
#define SIM_DONE 16384
#define SIM_NONE 0xffffffffu
#define SIM_FOREVER UINT64_MAX

enum sim_kind {
    SIM_KERNEL = 1,
    SIM_GRAPH = 2,
    SIM_COPY_IN = 3,  /* host to device, on a copy engine */
    SIM_COPY_OUT = 4, /* device to host, on a copy engine */
    SIM_COPY_LOCAL = 5,
    SIM_SET = 6,
    SIM_COLLECTIVE = 7,
    SIM_RECORD = 8,
    SIM_WAIT = 9,
};

enum sim_flag {
    SIM_HANG = 1,    /* never ends until the device releases its hung kernels or the owner dies */
    SIM_ABORTED = 2, /* in the truth only: the owner died before the end */
};

/* One operation in a stream. `share` is the part of the device it can fill, in 1/1000. */
struct sim_op {
    uint64_t submit_ns;
    uint64_t compute_ns;
    uint64_t memory_ns;
    uint64_t bytes;
    uint64_t arg;  /* RECORD: seq of the record; WAIT: seq of the other stream; COLLECTIVE: key */
    uint32_t arg2; /* RECORD: event; WAIT: stream; COLLECTIVE: ranks */
    uint32_t arg3; /* RECORD, WAIT: generation of the event or stream */
    uint32_t kernel;
    uint32_t count;
    uint16_t share;
    uint16_t power; /* 1/1000 of the dynamic power range while it runs alone */
    uint8_t kind;
    uint8_t flags;
    uint8_t tensor; /* percent of its time on the matrix units */
    uint8_t pad;
    uint32_t tag; /* its process wants to know when it ran; 0 does not */
    uint32_t pad2;
};

struct sim_stream {
    _Atomic uint32_t used; /* 0 free, 1 in use, 2 destroyed and draining */
    uint32_t generation;
    uint32_t client;
    uint32_t device;
    _Alignas(64) _Atomic uint64_t tail; /* operations submitted */
    _Alignas(64) _Atomic uint64_t head; /* operations completed */
    uint32_t started;
    uint32_t arrived; /* the collective at the head has been entered */
    uint64_t start_ns;
    uint64_t last_end_ns;
    double remaining;
    double duration;
    double rate;
    struct sim_op ring[SIM_RING];
};

struct sim_event {
    uint32_t owner; /* client + 1, or 0 for free */
    uint32_t generation;
    _Atomic uint64_t done_seq;
    _Atomic uint64_t done_ns;
};

struct sim_client_bucket {
    uint64_t index;
    uint32_t busy_ns[SIM_DEVICES];
    uint32_t memory_ns[SIM_DEVICES];
};

/* When a tagged operation ran, for its own process. */
struct sim_done {
    uint64_t start_ns, end_ns;
    uint32_t tag;
    uint32_t pad;
};

struct sim_client {
    _Atomic uint32_t used;
    uint32_t generation;
    int32_t pid;
    uint32_t mps;
    uint64_t created_ns;
    _Atomic uint64_t memory_bytes[SIM_DEVICES];
    _Atomic uint32_t contexts[SIM_DEVICES];
    _Atomic uint64_t launches;
    struct sim_client_bucket buckets[SIM_CLIENT_BUCKETS];
    _Atomic uint64_t done_head; /* the newest SIM_DONE are kept */
    struct sim_done done[SIM_DONE];
};

struct sim_collective {
    uint64_t key;
    uint32_t ranks; /* 0 for a free slot */
    uint32_t arrived;
    uint32_t departed;
    uint32_t pad;
};

struct sim_bucket {
    uint64_t index;
    uint32_t busy_ns;   /* at least one kernel was executing */
    uint32_t sm_ns;     /* weighted by the share of the device in use */
    uint32_t memory_ns; /* weighted by the share of the memory bandwidth in use */
    uint32_t tensor_ns;
    uint64_t energy_nj; /* above idle */
    uint64_t rx_bytes;  /* host to device */
    uint64_t tx_bytes;
};

/* What a controller sets. Plain 8-byte values: readable without the lock. */
struct sim_config {
    double peak_flops;       /* per second, at the full clock */
    double memory_bandwidth; /* bytes per second */
    double link_bandwidth;   /* bytes per second, each direction */
    double memory_bytes;
    double context_bytes; /* taken by each context */
    double clock_factor;  /* of the SM clock: 1 is the full clock */
    double memory_factor; /* of the memory bandwidth */
    double clock_mhz;     /* the full SM clock */
    double idle_clock_mhz;
    double memory_clock_mhz;
    double idle_watts;
    double max_watts;
    double limit_watts;
    double clock_reasons; /* bits of nvmlClocksEventReason*, besides idle */
    double launch_latency_ns;
    double timeslice_ns;
    double switch_ns;
    double queue_depth;
    double util_window_ns;
    double link_generation;
    double link_max_generation;
    double link_width;
    double sm_count;
    double hang_release; /* every increase ends the kernels that hang now */
    double lost;         /* the device has fallen off the bus */
};

struct sim_device {
    struct sim_config config;
    uint64_t accounted_ns;
    uint64_t energy_nj; /* above idle, since the start */
    uint64_t busy_ns;
    uint64_t sm_ns;
    uint64_t memory_ns;
    uint64_t tensor_ns;
    uint64_t rx_bytes;
    uint64_t tx_bytes;
    uint64_t switches; /* turns of contexts */
    uint64_t last_busy_ns;
    uint64_t slice_end_ns;
    uint64_t switch_until_ns;
    uint32_t group; /* whose turn it is: a client, or SIM_CLIENTS for all of MPS */
    uint32_t pad;
    double released;
    char uuid[48];
    struct sim_bucket buckets[SIM_BUCKETS];
};

struct sim_truth {
    uint64_t submit_ns;
    uint64_t start_ns;
    uint64_t end_ns;
    uint64_t bytes;
    uint32_t kernel;
    int32_t pid;
    uint32_t stream;
    uint32_t device;
    uint32_t count;
    uint8_t kind;
    uint8_t flags;
    uint16_t share;
    uint64_t pad;
};

struct sim_global {
    double default_wait;      /* of synchronising calls: 0 sleeps, 1 yields, 2 spins */
    double module_load_ns;    /* CPU time of the first use of a module */
    double function_load_ns;  /* CPU time of the first use of a kernel */
    double launch_cpu_ns;     /* CPU time added to each launch */
    double default_kernel_ns; /* a kernel nobody gave a cost */
    double mps;               /* an MPS server is running */
    double driver_version;
    double nvml_fault; /* 0 none, 1 blocks for ever, else the NVML error to return */
};

struct sim_state {
    uint64_t magic;
    uint64_t size;
    uint32_t devices;
    uint32_t truth_capacity; /* a power of two, or 0 */
    uint64_t created_ns;
    pthread_mutex_t lock;
    uint64_t now_ns;
    uint64_t reaped_ns;
    uint64_t recoveries; /* times the lock was taken over from a dead process */
    struct sim_global global;
    char nvml_fault_function[64];
    char mps_pipe[256];
    uint32_t kernel_count;
    uint32_t event_hint;
    _Atomic uint64_t truth_head;
    char kernels[SIM_KERNELS][SIM_NAME];
    struct sim_device device[SIM_DEVICES];
    struct sim_client client[SIM_CLIENTS];
    struct sim_collective collective[SIM_COLLECTIVES];
    struct sim_event event[SIM_EVENTS];
    struct sim_stream stream[SIM_STREAMS];
    struct sim_truth truth[];
};

#endif
