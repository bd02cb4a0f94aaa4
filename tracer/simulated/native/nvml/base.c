/* Initialisation, faults, and what a device is. */
#include "nvml.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

struct sim_handle *machine;
static int references;

struct device_handle {
    uint32_t number;
};

static struct device_handle handles[SIM_DEVICES];

nvmlReturn_t allowed(const char *function) {
    struct timespec nap = {.tv_nsec = 50000000};
    struct sim_state *s;
    if (machine == NULL || references == 0) return UNINITIALIZED;
    s = machine->state;
    if (s->global.nvml_fault == 0) return OK;
    if (strncmp(function, s->nvml_fault_function, strlen(s->nvml_fault_function)) != 0) return OK;
    while (s->global.nvml_fault == 1) nanosleep(&nap, NULL);
    return (nvmlReturn_t)s->global.nvml_fault;
}

nvmlReturn_t device_of(const char *function, nvmlDevice_t handle, uint32_t *device) {
    nvmlReturn_t rc = allowed(function);
    if (rc != OK) return rc;
    if (handle < handles || handle >= handles + machine->state->devices) return INVALID_ARGUMENT;
    *device = handle->number;
    return machine->state->device[*device].config.lost != 0 ? GPU_IS_LOST : OK;
}

void carry_forward(void) {
    if (sim_lock(machine) != 0) return;
    sim_advance(machine, sim_clock_ns());
    sim_unlock(machine);
}

void window(uint32_t device, uint64_t *t0, uint64_t *t1) {
    uint64_t buckets = (uint64_t)(machine->state->device[device].config.util_window_ns /
                                  (double)SIM_BUCKET_NS);
    uint64_t span = (buckets < 1 ? 1 : buckets) * SIM_BUCKET_NS;
    *t1 = sim_clock_ns() / span * span;
    *t0 = *t1 - span;
}

uint64_t real_us(uint64_t monotonic_ns) {
    struct timespec ts;
    uint64_t now = sim_clock_ns();
    clock_gettime(CLOCK_REALTIME, &ts);
    return ((uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec - now + monotonic_ns) / 1000;
}

static nvmlReturn_t init(void) {
    machine = sim_from_environment();
    if (machine == NULL) return DRIVER_NOT_LOADED;
    for (uint32_t i = 0; i < SIM_DEVICES; i++) handles[i].number = i;
    references++;
    return allowed("nvmlInit");
}

API nvmlReturn_t nvmlInit_v2(void) { return init(); }

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    return init();
}

API nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t rc = allowed(__func__);
    if (references > 0) references--;
    return rc;
}

static const struct {
    nvmlReturn_t code;
    const char *text;
} errors[] = {
    {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"},
    {4, "Insufficient Permissions"}, {6, "Not Found"}, {7, "Insufficient Size"},
    {9, "Driver Not Loaded"}, {10, "Timeout"}, {15, "GPU is lost"}, {999, "Unknown Error"},
};

API const char *nvmlErrorString(nvmlReturn_t code) {
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].code == code) return errors[i].text;
    }
    return "Unknown Error";
}

static nvmlReturn_t text(const char *function, char *out, unsigned int n, const char *value) {
    nvmlReturn_t rc = allowed(function);
    if (rc != OK) return rc;
    if (out == NULL) return INVALID_ARGUMENT;
    return (unsigned int)snprintf(out, n, "%s", value) < n ? OK : INSUFFICIENT_SIZE;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned int n) {
    return text(__func__, out, n, "simulated");
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned int n) {
    return text(__func__, out, n, "simulated");
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t rc = allowed(__func__);
    if (rc == OK) *version = (int)machine->state->global.driver_version;
    return rc;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *out, unsigned int n) {
    nvmlReturn_t rc = allowed(__func__);
    char path[64];
    FILE *f;
    if (rc != OK) return rc;
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    f = fopen(path, "r");
    if (f == NULL) return NOT_FOUND;
    rc = fgets(out, (int)n, f) == NULL ? NOT_FOUND : OK;
    fclose(f);
    if (rc == OK) out[strcspn(out, "\n")] = 0;
    return rc;
}

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) {
    nvmlReturn_t rc = allowed(__func__);
    if (rc == OK) *n = machine->state->devices;
    return rc;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *out) {
    nvmlReturn_t rc = allowed(__func__);
    if (rc != OK) return rc;
    if (out == NULL || i >= machine->state->devices) return INVALID_ARGUMENT;
    if (machine->state->device[i].config.lost != 0) return GPU_IS_LOST;
    *out = &handles[i];
    return OK;
}

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out) {
    nvmlReturn_t rc = allowed(__func__);
    if (rc != OK) return rc;
    for (uint32_t i = 0; i < machine->state->devices; i++) {
        if (strcmp(machine->state->device[i].uuid, uuid) != 0) continue;
        *out = &handles[i];
        return OK;
    }
    return NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out) {
    nvmlReturn_t rc = allowed(__func__);
    unsigned int domain, bus;
    if (rc != OK) return rc;
    if (sscanf(id, "%x:%x:", &domain, &bus) != 2) return INVALID_ARGUMENT;
    if (bus < 1 || bus > machine->state->devices) return NOT_FOUND;
    *out = &handles[bus - 1];
    return OK;
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t h, char *out, unsigned int n) {
    DEVICE(h);
    return text(__func__, out, n, "Simulated GPU");
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t h, char *out, unsigned int n) {
    DEVICE(h);
    return text(__func__, out, n, machine->state->device[d].uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t h, char *out, unsigned int n) {
    DEVICE(h);
    return text(__func__, out, n, "simulated");
}

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t h, unsigned int *out) {
    DEVICE(h);
    *out = d;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t h, unsigned int *out) {
    DEVICE(h);
    *out = d;
    return OK;
}

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, id, subsystem;
    char bus_id[32];
};

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t h, struct pci *out) {
    DEVICE(h);
    memset(out, 0, sizeof *out);
    out->bus = d + 1;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", d + 1);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", d + 1);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t h, int *major, int *minor) {
    DEVICE(h);
    *major = 9;
    *minor = 0;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t h, unsigned int *now, unsigned int *pending) {
    DEVICE(h);
    *now = *pending = 0;
    return OK;
}

#define CONSTANT(NAME, VALUE)                                                                    \
    API nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *out) {                                   \
        DEVICE(h);                                                                               \
        *out = (unsigned int)(VALUE);                                                            \
        return OK;                                                                               \
    }

CONSTANT(nvmlDeviceGetComputeMode, 0)
CONSTANT(nvmlDeviceGetPersistenceMode, 1)
CONSTANT(nvmlDeviceGetBrand, 0)
CONSTANT(nvmlDeviceGetCurrPcieLinkGeneration, c->link_generation)
CONSTANT(nvmlDeviceGetMaxPcieLinkGeneration, c->link_max_generation)
CONSTANT(nvmlDeviceGetGpuMaxPcieLinkGeneration, c->link_max_generation)
CONSTANT(nvmlDeviceGetCurrPcieLinkWidth, c->link_width)
CONSTANT(nvmlDeviceGetMaxPcieLinkWidth, c->link_width)
CONSTANT(nvmlDeviceGetNumGpuCores, c->sm_count * 128)
CONSTANT(nvmlDeviceGetMemoryBusWidth, 5120)

/* Everything of the list that nothing here implements. */
nvmlReturn_t refuse(const char *name, int *said) {
    nvmlReturn_t rc = allowed(name);
    (void)said;
    return rc == OK ? NOT_SUPPORTED : rc;
}
