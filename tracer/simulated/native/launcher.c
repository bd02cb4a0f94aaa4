/* A process that launches: for tests and for calibrating. See `usage`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct {
    unsigned int x, y, z;
} dim3;

static const char usage[] =
    "launcher [key=value ...]\n"
    "  cudart=12|13        the runtime (12)\n"
    "  launches=N          how many launches (1000); 0 for ever\n"
    "  rate=R              launches a second; 0 as fast as they go (0)\n"
    "  kernel_us=T         what each takes on the device (5)\n"
    "  memory_us=T         of which the memory needs (0)\n"
    "  share=S             part of the device it fills, 0 to 1 (1)\n"
    "  sync=N              synchronise after every N launches; 0 only at the end (0)\n"
    "  streams=N           streams to go round (1)\n"
    "  twin=0|1            the _ptsz functions (0)\n"
    "  graph=N             launch graphs of N captured kernels instead (0)\n"
    "  hang=N              the launch number N never ends; 0 none (0)\n"
    "  flags=F             cudaSetDeviceFlags (0)\n"
    "  device=D            (0)\n"
    "  stub=0|1            launch by handle through __cudaLaunchKernel (0)\n"
    "  end_sync=0|1        synchronise before the end (1)\n"
    "Prints one line of key=value at the end: launches, wall_us, cpu_us, launch_us_max.\n";

static char kernel_stub; /* its address stands for the host stub of a kernel */

static const char *option(int argc, char **argv, const char *key) {
    size_t n = strlen(key);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], key, n) == 0 && argv[i][n] == '=') return argv[i] + n + 1;
    }
    return NULL;
}

static double number(int argc, char **argv, const char *key, double otherwise) {
    const char *text = option(argc, argv, key);
    return text == NULL ? otherwise : atof(text);
}

static void *need(void *library, const char *name, const char *suffix) {
    char full[128];
    void *p;
    snprintf(full, sizeof full, "%s%s", name, suffix);
    p = dlsym(library, full);
    if (p == NULL) {
        fprintf(stderr, "launcher: %s is missing: %s\n", full, dlerror());
        exit(1);
    }
    return p;
}

static uint64_t clock_ns(clockid_t id) {
    struct timespec ts;
    clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

static void check(int rc, const char *what) {
    if (rc == 0) return;
    fprintf(stderr, "launcher: %s failed with %d\n", what, rc);
    exit(2);
}

int main(int argc, char **argv) {
    int version = (int)number(argc, argv, "cudart", 12);
    int twin = (int)number(argc, argv, "twin", 0), by_handle = (int)number(argc, argv, "stub", 0);
    int n_streams = (int)number(argc, argv, "streams", 1);
    int graph_size = (int)number(argc, argv, "graph", 0);
    uint64_t launches = (uint64_t)number(argc, argv, "launches", 1000);
    uint64_t sync = (uint64_t)number(argc, argv, "sync", 0);
    uint64_t hang = (uint64_t)number(argc, argv, "hang", 0);
    double rate = number(argc, argv, "rate", 0), share = number(argc, argv, "share", 1);
    uint64_t compute = (uint64_t)(number(argc, argv, "kernel_us", 5) * 1000);
    uint64_t memory = (uint64_t)(number(argc, argv, "memory_us", 0) * 1000);
    const char *suffix = twin ? "_ptsz" : "";
    void *rt, *sim, *streams[64] = {0}, *handle = &kernel_stub, *exec = NULL;
    char soname[32];
    uint64_t begin, cpu, longest = 0, i;
    struct {
        int magic, version;
        const void *data;
        void *more;
    } wrapper = {0x466243b1, 1, soname, NULL};

    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    snprintf(soname, sizeof soname, "libcudart.so.%d", version);
    rt = dlopen(soname, RTLD_NOW);
    sim = dlopen("libtracersim.so", RTLD_NOW);
    if (rt == NULL || sim == NULL || n_streams < 1 || n_streams > 64) {
        fprintf(stderr, "launcher: %s\n", rt == NULL || sim == NULL ? dlerror() : usage);
        return 1;
    }
    void **(*register_binary)(void *) = need(rt, "__cudaRegisterFatBinary", "");
    void (*register_function)(void **, const void *, char *, const char *, int, void *, void *,
                              void *, void *, int *) = need(rt, "__cudaRegisterFunction", "");
    int (*set_device)(int) = need(rt, "cudaSetDevice", "");
    int (*set_flags)(unsigned int) = need(rt, "cudaSetDeviceFlags", "");
    int (*create)(void **, unsigned int) = need(rt, "cudaStreamCreateWithFlags", "");
    int (*launch)(const void *, dim3, dim3, void **, size_t, void *) =
        need(rt, by_handle ? "__cudaLaunchKernel" : "cudaLaunchKernel", suffix);
    int (*synchronize)(void *) = need(rt, "cudaStreamSynchronize", suffix);
    int (*device_synchronize)(void) = need(rt, "cudaDeviceSynchronize", "");
    int (*get_kernel)(void **, const void *) = need(rt, "__cudaGetKernel", "");
    int (*capture)(void *, int) = need(rt, "cudaStreamBeginCapture", suffix);
    int (*end_capture)(void *, void **) = need(rt, "cudaStreamEndCapture", suffix);
    int (*instantiate)(void **, void *, unsigned long long) =
        need(rt, "cudaGraphInstantiateWithFlags", "");
    int (*graph_launch)(void *, void *) = need(rt, "cudaGraphLaunch", suffix);
    void (*cost)(const char *, uint64_t, uint64_t, double, double, double) =
        need(sim, "tracer_sim_kernel", "");
    void (*next_hangs)(void) = need(sim, "tracer_sim_next_hang", "");

    void **binary = register_binary(&wrapper);
    register_function(binary, &kernel_stub, "launcher_kernel", "launcher_kernel", -1, NULL, NULL,
                      NULL, NULL, NULL);
    cost("launcher_kernel", compute, memory, share, 1, 0.5);
    check(set_flags((unsigned int)number(argc, argv, "flags", 0)), "cudaSetDeviceFlags");
    check(set_device((int)number(argc, argv, "device", 0)), "cudaSetDevice");
    for (i = 0; i < (uint64_t)n_streams && (n_streams > 1 || graph_size > 0); i++) {
        check(create(&streams[i], 1), "cudaStreamCreateWithFlags");
    }
    if (by_handle) check(get_kernel(&handle, &kernel_stub), "__cudaGetKernel");
    if (graph_size > 0) {
        void *graph;
        check(capture(streams[0], 0), "cudaStreamBeginCapture");
        for (int k = 0; k < graph_size; k++) {
            check(launch(handle, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, streams[0]), "capture");
        }
        check(end_capture(streams[0], &graph), "cudaStreamEndCapture");
        check(instantiate(&exec, graph, 0), "cudaGraphInstantiate");
    }
    printf("ready pid=%d\n", (int)getpid());
    fflush(stdout);
    begin = clock_ns(CLOCK_MONOTONIC);
    cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (i = 0; launches == 0 || i < launches; i++) {
        void *s = streams[i % (uint64_t)n_streams];
        uint64_t t0 = clock_ns(CLOCK_MONOTONIC), t1;
        if (hang != 0 && i + 1 == hang) next_hangs();
        if (exec != NULL) check(graph_launch(exec, s), "cudaGraphLaunch");
        else check(launch(handle, (dim3){1, 1, 1}, (dim3){32, 1, 1}, NULL, 0, s), "cudaLaunchKernel");
        t1 = clock_ns(CLOCK_MONOTONIC);
        if (t1 - t0 > longest) longest = t1 - t0;
        if (sync != 0 && (i + 1) % sync == 0) check(synchronize(s), "cudaStreamSynchronize");
        if (rate > 0) {
            uint64_t due = begin + (uint64_t)((double)(i + 1) / rate * 1e9);
            struct timespec ts = {(time_t)(due / 1000000000ULL), (long)(due % 1000000000ULL)};
            if (due > t1) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
        }
    }
    if (number(argc, argv, "end_sync", 1) != 0) {
        check(device_synchronize(), "cudaDeviceSynchronize");
    }
    printf("launches=%llu wall_us=%llu cpu_us=%llu launch_us_max=%llu\n",
           (unsigned long long)launches,
           (unsigned long long)(clock_ns(CLOCK_MONOTONIC) - begin) / 1000,
           (unsigned long long)(clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / 1000,
           (unsigned long long)longest / 1000);
    return 0;
}
