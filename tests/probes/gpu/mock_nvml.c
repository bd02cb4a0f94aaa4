/* A stand-in for libnvidia-ml.so.1 with two GPUs, whose faults a test sets while it runs.
 *
 * The file named by MOCK_NVML holds lines "FUNCTION DEVICE WHAT": FUNCTION or DEVICE may be *,
 * WHAT is an NVML error number, "hang" (never returns), or "slow" (takes 30 ms).
 * "gone DEVICE 1": it is not enumerated. "reset DEVICE N": who initialised the library before the
 * N-th reset of the device has lost it.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ENTRY __attribute__((visibility("default"))) int
#define CHECK(device) do { int code = verdict(__func__, (device)); if (code) return code; } while (0)

/* What a line says of a device that is not about a function; 0 without such a line. */
static int told(const char *word, long device) {
    const char *path = getenv("MOCK_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[80], which[16], what[16];
    int value = 0;
    if (!file) return 0;
    while (fscanf(file, "%79s %15s %15s", name, which, what) == 3)
        if (!strcmp(name, word) && atol(which) == device) value = atoi(what);
    fclose(file);
    return value;
}

static int resets[2];

static int initialise(void) {
    for (int device = 0; device < 2; device++) resets[device] = told("reset", device);
    return 0;
}

static int verdict(const char *function, long device) {
    const char *path = getenv("MOCK_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char name[80], which[16], what[16];
    int code = 0;
    if (!file) return 0;
    while (fscanf(file, "%79s %15s %15s", name, which, what) == 3) {
        if (strcmp(name, "*") && strcmp(name, function)) continue;
        if (strcmp(which, "*") && atol(which) != device) continue;
        if (!strcmp(what, "hang")) { fclose(file); for (;;) pause(); }
        if (!strcmp(what, "slow")) { usleep(30000); continue; }
        code = atoi(what);
        break;
    }
    fclose(file);
    if (!code && (device == 0 || device == 1) && told("reset", device) > resets[device]) code = 15;
    return code;
}

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static long index_of(void *handle) { return (long)handle - 1; }

ENTRY nvmlInit_v2(void) { CHECK(-1); return initialise(); }
ENTRY nvmlInitWithFlags(unsigned flags) { (void)flags; CHECK(-1); return initialise(); }
ENTRY nvmlDeviceGetCount_v2(unsigned *count) {
    CHECK(-1);
    *count = 2 - told("gone", 0) - told("gone", 1);
    return 0;
}
ENTRY nvmlSystemGetDriverVersion(char *text, unsigned n) { snprintf(text, n, "590.48.01"); return 0; }
ENTRY nvmlSystemGetNVMLVersion(char *text, unsigned n) { snprintf(text, n, "13.590"); return 0; }
ENTRY nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    unsigned device = told("gone", 0) ? index + 1 : index;
    if (device > 1) return 6;
    CHECK(device);
    *handle = (void *)(long)(device + 1);
    return 0;
}
ENTRY nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    long device = atol(uuid + sizeof "GPU-mock-" - 1);
    if (told("gone", device)) return 6;
    CHECK(device);
    *handle = (void *)(device + 1);
    return 0;
}
ENTRY nvmlDeviceGetName(void *h, char *text, unsigned n) {
    CHECK(index_of(h)); snprintf(text, n, "Mock %ld", index_of(h)); return 0;
}
ENTRY nvmlDeviceGetUUID(void *h, char *text, unsigned n) {
    CHECK(index_of(h)); snprintf(text, n, "GPU-mock-%ld", index_of(h)); return 0;
}
ENTRY nvmlDeviceGetIndex(void *h, unsigned *index) {
    *index = index_of(h) - told("gone", 0);
    return 0;
}
ENTRY nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) {
    CHECK(index_of(h)); rates[0] = 42 + index_of(h); rates[1] = 7; return 0;
}
ENTRY nvmlDeviceGetPowerUsage(void *h, unsigned *mw) { CHECK(index_of(h)); *mw = 300000; return 0; }
ENTRY nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *mj) {
    CHECK(index_of(h)); *mj = 5000000000ull; return 0;
}
ENTRY nvmlDeviceGetClockInfo(void *h, unsigned kind, unsigned *mhz) {
    CHECK(index_of(h)); *mhz = kind == 1 ? 1980 : 2619; return 0;
}
ENTRY nvmlDeviceGetMaxClockInfo(void *h, unsigned kind, unsigned *mhz) {
    (void)kind; CHECK(index_of(h)); *mhz = 1980; return 0;
}
ENTRY nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *reasons) {
    CHECK(index_of(h)); *reasons = 4; return 0;
}
ENTRY nvmlDeviceGetTemperature(void *h, unsigned kind, unsigned *celsius) {
    (void)kind; CHECK(index_of(h)); *celsius = 61; return 0;
}
ENTRY nvmlDeviceGetMemoryInfo(void *h, unsigned long long *memory) {
    CHECK(index_of(h));
    memory[0] = 80ull << 30; memory[1] = 60ull << 30; memory[2] = 20ull << 30;
    return 0;
}
ENTRY nvmlDeviceGetEnforcedPowerLimit(void *h, unsigned *mw) {
    CHECK(index_of(h)); *mw = 700000; return 0;
}
ENTRY nvmlDeviceGetPowerManagementLimit(void *h, unsigned *mw) {
    CHECK(index_of(h)); *mw = 650000; return 0;
}
ENTRY nvmlDeviceGetPowerManagementDefaultLimit(void *h, unsigned *mw) {
    CHECK(index_of(h)); *mw = 0xFFFFFFFFu; return 0; /* NVML's blank */
}
ENTRY nvmlDeviceGetCurrPcieLinkGeneration(void *h, unsigned *value) {
    CHECK(index_of(h)); *value = 5; return 0;
}
ENTRY nvmlDeviceGetCurrPcieLinkWidth(void *h, unsigned *value) {
    CHECK(index_of(h)); *value = 16; return 0;
}
ENTRY nvmlDeviceGetPcieThroughput(void *h, unsigned counter, unsigned *kilobytes) {
    CHECK(index_of(h)); *kilobytes = counter ? 2000 : 1000; return 0;
}

struct field { uint32_t id, scope; int64_t time, latency; uint32_t type; int32_t code; uint64_t value; };

ENTRY nvmlDeviceGetFieldValues(void *h, int n, struct field *fields) {
    CHECK(index_of(h));
    for (int i = 0; i < n; i++) {
        fields[i].code = 0;
        fields[i].type = 1;
        if (fields[i].id == 185) fields[i].value = 310000;
        else if (fields[i].id == 186) fields[i].value = 420000;
        else if (fields[i].id == 138) { fields[i].type = 3; fields[i].value = now_us() / 1000; }
        else fields[i].code = 3;
    }
    return 0;
}

struct sample { uint64_t time; uint64_t value; };

ENTRY nvmlDeviceGetSamples(void *h, unsigned kind, uint64_t since, unsigned *type, unsigned *n,
                           struct sample *samples) {
    CHECK(index_of(h));
    if (kind != 1 && kind != 2) return 3;
    uint64_t step = 100000, now = now_us(), first = (since / step + 1) * step;
    unsigned count = now > first ? (now - first) / step + 1 : 0;
    if (!count) return 6;
    if (count > 100) count = 100;
    *type = 1;
    if (samples) {
        if (*n < count) count = *n;
        for (unsigned i = 0; i < count; i++) {
            samples[i].time = first + i * step;
            samples[i].value = kind == 1 ? 55 : 255; /* 255: a blank of memory utilisation */
        }
    }
    *n = count;
    return 0;
}

struct process { uint32_t pid; uint64_t memory; uint32_t gpu_instance, compute_instance; };

static int processes(unsigned *n, struct process *list, const char *variable) {
    const char *text = getenv(variable);
    unsigned count = 0, capacity = list ? *n : 0;
    uint32_t pids[16];
    while (text && *text && count < 16) {
        char *end;
        pids[count++] = strtoul(text, &end, 10);
        text = *end ? end + 1 : end;
    }
    *n = count;
    if (!count) return 0;
    if (capacity < count) return 7;
    for (unsigned i = 0; i < count; i++) {
        memset(&list[i], 0, sizeof list[i]);
        list[i].pid = pids[i];
        list[i].memory = i ? ~0ull : 1ull << 30;
    }
    return 0;
}
ENTRY nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *n, struct process *list) {
    CHECK(index_of(h)); return processes(n, list, "MOCK_COMPUTE");
}
ENTRY nvmlDeviceGetMPSComputeRunningProcesses_v3(void *h, unsigned *n, struct process *list) {
    CHECK(index_of(h)); return processes(n, list, "MOCK_MPS");
}

struct share { uint32_t pid; uint64_t time; uint32_t sm, memory, encoder, decoder; };

ENTRY nvmlDeviceGetProcessUtilization(void *h, struct share *list, unsigned *n, uint64_t since) {
    CHECK(index_of(h));
    if (!list) { *n = 100; return 7; }
    uint32_t own = getenv("MOCK_COMPUTE") ? strtoul(getenv("MOCK_COMPUTE"), NULL, 10) : 1;
    struct share found[] = {
        {own, since + 1, 11, 1, 0, 0},
        {own, since + 2, 130, 3, 0, 0},
        {0, since + 2, 2147483632u, 2147483632u, 0, 0},
        {4194303, since + 2, 50, 50, 0, 0},
    };
    memcpy(list, found, sizeof found);
    *n = 4;
    return 0;
}

struct event { void *device; uint64_t kind, data; uint32_t gpu_instance, compute_instance; };

ENTRY nvmlEventSetCreate(void **set) { *set = (void *)1; return 0; }
ENTRY nvmlEventSetFree(void *set) { (void)set; return 0; }
ENTRY nvmlDeviceRegisterEvents(void *h, uint64_t kinds, void *set) {
    (void)kinds; (void)set; CHECK(index_of(h)); return 0;
}
ENTRY nvmlEventSetWait_v2(void *set, struct event *event, unsigned timeout_ms) {
    static int is_told;
    (void)set;
    CHECK(-1);
    if (is_told || !getenv("MOCK_XID") || told("calm", 1)) { usleep(timeout_ms * 100); return 10; }
    is_told = 1;
    event->device = (void *)2;
    event->kind = 8;
    event->data = atoi(getenv("MOCK_XID"));
    return 0;
}

ENTRY nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, unsigned *level) {
    (void)b; CHECK(index_of(a)); *level = 30; return 0;
}
ENTRY nvmlDeviceGetMigMode(void *h, unsigned *current, unsigned *pending) {
    CHECK(index_of(h)); *current = *pending = index_of(h) == 1; return 0;
}
ENTRY nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *count) {
    CHECK(index_of(h)); *count = 7; return 0;
}
ENTRY nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **part) {
    (void)h;
    if (index) return 6;
    *part = (void *)2;
    return 0;
}
ENTRY nvmlDeviceGetGpuInstanceId(void *part, unsigned *id) { (void)part; *id = 9; return 0; }

struct metric { uint32_t id; int32_t code; double value; void *info[3]; };
struct metrics { uint32_t version, n; void *sample1, *sample2; struct metric metrics[]; };
struct support { uint32_t version, is_supported; };

ENTRY nvmlGpmQueryDeviceSupport(void *h, struct support *support) {
    CHECK(index_of(h));
    support->is_supported = index_of(h) == 0 || getenv("MOCK_MIG_GPM"); /* else the first alone */
    return 0;
}
ENTRY nvmlGpmSampleAlloc(void **sample) { *sample = malloc(8); return 0; }
ENTRY nvmlGpmSampleGet(void *h, uint64_t *sample) { CHECK(index_of(h)); *sample = now_us(); return 0; }
ENTRY nvmlGpmMigSampleGet(void *h, unsigned instance, uint64_t *sample) {
    CHECK(index_of(h));
    if (instance != 9) return 2;
    *sample = now_us();
    return 0;
}
ENTRY nvmlGpmMetricsGet(struct metrics *request) {
    CHECK(0);
    if (*(uint64_t *)request->sample1 >= *(uint64_t *)request->sample2) return 2;
    for (uint32_t i = 0; i < request->n; i++)
        if (request->metrics[i].id == 179) return 2; /* an old driver refuses the whole request */
    for (uint32_t i = 0; i < request->n; i++) {
        struct metric *m = &request->metrics[i];
        m->code = 0;
        switch (m->id) {
            case 2: m->value = 87.5; break;
            case 3: m->value = 31.0; break;
            case 5: m->value = 0.0 / 0.0; break;
            case 10: m->value = 9999.0; break;
            case 20: m->value = 2.0; break;
            case 172: m->value = 300; break;
            case 177: m->value = 200; break;
            case 174: m->value = 1.5; break;
            default: m->code = 3;
        }
    }
    return 0;
}
