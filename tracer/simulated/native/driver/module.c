/* Modules, libraries and their kernels. Images are not read: any kernel that is asked for exists.
 * The first use of a module and of each kernel costs CPU time, as loading does. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

static pthread_mutex_t modules_lock = PTHREAD_MUTEX_INITIALIZER;
static struct module *modules;

static CUresult load(struct module **out, const void *image) {
    struct module *m;
    if (ready() != OK) return NOT_INITIALIZED;
    if (out == NULL || image == NULL) return INVALID_VALUE;
    m = calloc(1, sizeof *m);
    if (m == NULL) return OUT_OF_MEMORY;
    m->image = image;
    sim_burn_ns((uint64_t)sim->state->global.module_load_ns);
    pthread_mutex_lock(&modules_lock);
    m->next = modules;
    modules = m;
    pthread_mutex_unlock(&modules_lock);
    *out = m;
    return OK;
}

static CUresult unload(struct module *m) {
    CUresult rc = INVALID_HANDLE;
    pthread_mutex_lock(&modules_lock);
    for (struct module **p = &modules; *p != NULL; p = &(*p)->next) {
        if (*p != m) continue;
        *p = m->next;
        rc = OK;
        break;
    }
    pthread_mutex_unlock(&modules_lock);
    /* Its functions may still be held by name: they stay. */
    return rc;
}

static CUresult find(struct function **out, struct module *m, const char *name) {
    struct function *f;
    CUresult rc = OK;
    if (ready() != OK) return NOT_INITIALIZED;
    if (out == NULL || m == NULL || name == NULL || name[0] == 0) return INVALID_VALUE;
    pthread_mutex_lock(&modules_lock);
    for (f = m->functions; f != NULL && strcmp(f->name, name) != 0; f = f->next) {
    }
    if (f == NULL && (f = calloc(1, sizeof *f)) != NULL) {
        f->name = strdup(name);
        f->module = m;
        f->entry = tracer_sim_entry(name);
        f->kernel = sim_kernel_id(sim, name);
        f->next = m->functions;
        m->functions = f;
    }
    if (f == NULL) rc = OUT_OF_MEMORY;
    else *out = f;
    pthread_mutex_unlock(&modules_lock);
    return rc;
}

static CUresult bring_in(struct function *f) {
    if (f == NULL) return INVALID_HANDLE;
    if (!f->loaded) sim_burn_ns((uint64_t)sim->state->global.function_load_ns);
    f->loaded = 1;
    return OK;
}

API CUresult cuModuleLoad(CUmodule *out, const char *path) { return load(out, path); }
API CUresult cuModuleLoadData(CUmodule *out, const void *image) { return load(out, image); }
API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) { return load(out, image); }

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, int *options,
                                void **values) {
    (void)n, (void)options, (void)values;
    return load(out, image);
}

API CUresult cuModuleUnload(CUmodule m) { return unload(m); }

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule m, const char *name) {
    CUresult rc = find(out, m, name);
    return rc == OK ? bring_in(*out) : rc;
}

API CUresult cuModuleGetLoadingMode(int *mode) {
    *mode = 2; /* lazy */
    return OK;
}

API CUresult cuLibraryLoadData(CUlibrary *out, const void *code, int *jit, void **jit_values,
                               unsigned int n_jit, int *options, void **values, unsigned int n) {
    (void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
    return load(out, code);
}

API CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, int *jit, void **jit_values,
                                   unsigned int n_jit, int *options, void **values,
                                   unsigned int n) {
    (void)jit, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
    return load(out, path);
}

API CUresult cuLibraryUnload(CUlibrary m) { return unload(m); }
API CUresult cuLibraryGetKernel(CUkernel *k, CUlibrary m, const char *n) { return find(k, m, n); }

API CUresult cuLibraryGetModule(CUmodule *out, CUlibrary m) {
    if (out == NULL || m == NULL) return INVALID_HANDLE;
    *out = m;
    return OK;
}

API CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    CUresult rc = bring_in(kernel);
    if (rc == OK) *out = kernel;
    return rc;
}

static CUresult name_of(const char **out, const struct function *f) {
    if (out == NULL || f == NULL) return INVALID_VALUE;
    *out = f->name;
    return OK;
}

API CUresult cuKernelGetName(const char **out, CUkernel kernel) { return name_of(out, kernel); }
API CUresult cuFuncGetName(const char **out, CUfunction f) { return name_of(out, f); }

API CUresult cuFuncGetModule(CUmodule *out, CUfunction f) {
    if (out == NULL || f == NULL) return INVALID_VALUE;
    *out = f->module;
    return OK;
}

API CUresult cuFuncIsLoaded(int *state, CUfunction f) {
    if (state == NULL || f == NULL) return INVALID_VALUE;
    *state = f->loaded;
    return OK;
}

API CUresult cuFuncLoad(CUfunction f) { return bring_in(f); }

/* Numbers are those of CUfunction_attribute. */
static CUresult get(int *value, int attribute, const struct function *f) {
    if (value == NULL || f == NULL || attribute < 0 || attribute >= 32) return INVALID_VALUE;
    switch (attribute) {
    case 0: *value = 1024; break;
    case 4: *value = 32; break; /* registers */
    case 5: case 6: *value = 90; break;
    default: *value = f->attributes[attribute];
    }
    return OK;
}

static CUresult set(struct function *f, int attribute, int value) {
    if (f == NULL || attribute < 0 || attribute >= 32) return INVALID_VALUE;
    f->attributes[attribute] = value;
    return OK;
}

API CUresult cuFuncGetAttribute(int *value, int a, CUfunction f) { return get(value, a, f); }
API CUresult cuFuncSetAttribute(CUfunction f, int a, int value) { return set(f, a, value); }

API CUresult cuKernelGetAttribute(int *value, int a, CUkernel f, CUdevice device) {
    (void)device;
    return get(value, a, f);
}

API CUresult cuKernelSetAttribute(int a, int value, CUkernel f, CUdevice device) {
    (void)device;
    return set(f, a, value);
}

API CUresult cuFuncSetCacheConfig(CUfunction f, int config) {
    (void)config;
    return f == NULL ? INVALID_HANDLE : OK;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, CUfunction f, int block,
                                                         size_t shared) {
    (void)shared;
    if (n == NULL || f == NULL || block <= 0) return INVALID_VALUE;
    *n = 2048 / block < 32 ? 2048 / block : 32;
    return OK;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, CUfunction f, int block,
                                                                  size_t shared,
                                                                  unsigned int flags) {
    (void)shared, (void)flags;
    if (n == NULL || f == NULL || block <= 0) return INVALID_VALUE;
    *n = 2048 / block < 32 ? 2048 / block : 32;
    return OK;
}
