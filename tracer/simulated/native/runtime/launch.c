/* Registration of kernels by the code that nvcc generates, and launching them. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

struct fat_binary {
    const void *image;
    _Atomic(CUlibrary) library;
};

struct kernel {
    const void *stub;
    char *name;
    struct fat_binary *binary;
    _Atomic(CUfunction) function;
};

#define TABLE 65536

/* Open addressing by stub; entries never move and are never removed. */
static struct kernel *_Atomic table[TABLE];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned int slot_of(const void *stub) {
    return (unsigned int)(((uintptr_t)stub * 0x9e3779b97f4a7c15ULL) >> 48);
}

static struct kernel *find(const void *stub) {
    for (unsigned int i = slot_of(stub), n = 0; n < TABLE; i++, n++) {
        struct kernel *k = atomic_load_explicit(&table[i % TABLE], memory_order_acquire);
        if (k == NULL || k->stub == stub) return k;
    }
    return NULL;
}

static void put(struct kernel *k) {
    unsigned int i = slot_of(k->stub);
    while (atomic_load(&table[i % TABLE]) != NULL) i++;
    atomic_store_explicit(&table[i % TABLE], k, memory_order_release);
}

struct wrapper { /* what nvcc's code hands over */
    int magic, version;
    const void *data;
    void *more;
};

API void **__cudaRegisterFatBinary(void *wrapper) {
    struct fat_binary *b = calloc(1, sizeof *b);
    if (b != NULL) b->image = ((struct wrapper *)wrapper)->data;
    return (void **)b;
}

API void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

/* The kernels stay known: their stubs may not be called again. */
API void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

API void __cudaRegisterFunction(void **handle, const char *stub, char *device_function,
                                const char *name, int limit, void *tid, void *bid, void *block,
                                void *grid, int *warp) {
    struct kernel *k;
    (void)device_function, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    pthread_mutex_lock(&table_lock);
    k = find(stub);
    if (k == NULL && (k = calloc(1, sizeof *k)) != NULL) {
        k->stub = stub;
        k->name = strdup(name);
        k->binary = (struct fat_binary *)handle;
        put(k);
    }
    pthread_mutex_unlock(&table_lock);
}

API void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext,
                           size_t size, int constant, int global) {
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant;
    (void)global;
}

API void __cudaRegisterManagedVar(void **handle, void **host, char *address, const char *name,
                                  int ext, size_t size, int constant, int global) {
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant;
    (void)global;
}

API char __cudaInitModule(void **handle) {
    (void)handle;
    return 1;
}

#define DEPTH 16
static __thread struct {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configurations[DEPTH];
static __thread int depth;

API unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                             cudaStream_t stream) {
    if (depth >= DEPTH) return 1;
    configurations[depth].grid = grid;
    configurations[depth].block = block;
    configurations[depth].shared = shared;
    configurations[depth].stream = stream;
    depth++;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (depth == 0) return keep(52); /* missing configuration */
    depth--;
    *grid = configurations[depth].grid;
    *block = configurations[depth].block;
    *shared = configurations[depth].shared;
    *(cudaStream_t *)stream = configurations[depth].stream;
    return 0;
}

/* A handle of CUDA 12 and 13 is the table's own entry, known in the table under its address too, so
 * that a launch takes either. */
static cudaError_t get_kernel(cudaKernel_t *handle, const void *stub) {
    struct kernel *k = find(stub);
    if (handle == NULL) return keep(1);
    if (k == NULL) return keep(98);
    pthread_mutex_lock(&table_lock);
    if (find(k) == NULL) {
        struct kernel *alias = calloc(1, sizeof *alias);
        if (alias != NULL) {
            *alias = (struct kernel){.stub = k, .name = k->name, .binary = k->binary};
            put(alias);
        }
    }
    pthread_mutex_unlock(&table_lock);
    *handle = k;
    return 0;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *handle, const void *stub) {
    return get_kernel(handle, stub);
}

API cudaError_t cudaGetKernel(cudaKernel_t *handle, const void *stub) {
    return get_kernel(handle, stub);
}

static cudaError_t load(const struct driver *d, struct kernel *k, CUfunction *out) {
    CUlibrary library = atomic_load(&k->binary->library);
    CUkernel kernel;
    CUfunction function;
    cudaError_t rc;
    if (library == NULL) {
        rc = d->cuLibraryLoadData(&library, k->binary->image, NULL, NULL, 0, NULL, NULL, 0);
        if (rc != 0) return rc;
        atomic_store(&k->binary->library, library);
    }
    rc = d->cuLibraryGetKernel(&kernel, library, k->name);
    if (rc == 0) rc = d->cuKernelGetFunction(&function, kernel);
    if (rc != 0) return rc;
    atomic_store(&k->function, function);
    *out = function;
    return 0;
}

cudaError_t function_of(const struct driver *d, const void *stub, CUfunction *out) {
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    struct kernel *k = stub == NULL ? NULL : find(stub);
    cudaError_t rc = 0;
    if (k == NULL) return 98;
    *out = atomic_load_explicit(&k->function, memory_order_acquire);
    if (*out != NULL) return 0;
    pthread_mutex_lock(&loading);
    *out = atomic_load(&k->function);
    if (*out == NULL) rc = load(d, k, out);
    pthread_mutex_unlock(&loading);
    return rc;
}

static cudaError_t launch(const struct driver *d, const void *stub, dim3 g, dim3 b, void **args,
                          size_t shared, cudaStream_t s) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    if (rc != 0) return rc;
    rc = d->cuLaunchKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned int)shared, s, args, NULL);
    return rc == 1 ? 9 : rc;
}

static cudaError_t cooperative(const struct driver *d, const void *stub, dim3 g, dim3 b,
                               void **args, size_t shared, cudaStream_t s) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    if (rc != 0) return rc;
    rc = d->cuLaunchCooperativeKernel(f, g.x, g.y, g.z, b.x, b.y, b.z, (unsigned int)shared, s,
                                      args);
    return rc == 1 ? 9 : rc;
}

static cudaError_t launch_ex(const struct driver *d, const cudaLaunchConfig_t *c, const void *stub,
                             void **args) {
    CUlaunchConfig config;
    CUfunction f;
    cudaError_t rc;
    if (c == NULL) return 1;
    rc = function_of(d, stub, &f);
    if (rc != 0) return rc;
    config = (CUlaunchConfig){c->gridDim.x, c->gridDim.y, c->gridDim.z,
                              c->blockDim.x, c->blockDim.y, c->blockDim.z,
                              (unsigned int)c->dynamicSmemBytes, c->stream, c->attrs, c->numAttrs};
    rc = d->cuLaunchKernelEx(&config, f, args, NULL);
    return rc == 1 ? 9 : rc;
}

PTSZ(cudaLaunchKernel, launch,
     (const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s), f, g, b, args,
     shared, s)
PTSZ(cudaLaunchCooperativeKernel, cooperative,
     (const void *f, dim3 g, dim3 b, void **args, size_t shared, cudaStream_t s), f, g, b, args,
     shared, s)
PTSZ(cudaLaunchKernelExC, launch_ex,
     (const cudaLaunchConfig_t *c, const void *f, void **args), c, f, args)

/* The launch of code from CUDA 12.3 on: ten bytes that jump into the function above, with the
 * arguments and the return address of the caller in place. */
#define TAIL_JUMP(NAME, TARGET)                                                                  \
    __asm__(".text\n.p2align 4\n.globl " NAME "\n.type " NAME ", @function\n" NAME ":\n"         \
            "\tpush %rbp\n\tmov %rsp, %rbp\n\tpop %rbp\n\tjmp " TARGET "\n"                      \
            ".size " NAME ", . - " NAME "\n");
TAIL_JUMP("__cudaLaunchKernel", "cudaLaunchKernel")
TAIL_JUMP("__cudaLaunchKernel_ptsz", "cudaLaunchKernel_ptsz")

static cudaError_t set_attribute(const struct driver *d, const void *stub, int a, int value) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    return rc != 0 ? rc : d->cuFuncSetAttribute(f, a, value);
}

static cudaError_t get_attributes(const struct driver *d, cudaFuncAttributes *out,
                                  const void *stub) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    if (rc != 0) return rc;
    memset(out, 0, sizeof *out);
    d->cuFuncGetAttribute(&out->maxThreadsPerBlock, 0, f);
    d->cuFuncGetAttribute(&out->numRegs, 4, f);
    d->cuFuncGetAttribute(&out->ptxVersion, 5, f);
    d->cuFuncGetAttribute(&out->binaryVersion, 6, f);
    d->cuFuncGetAttribute(&out->maxDynamicSharedSizeBytes, 8, f);
    return 0;
}

static cudaError_t occupancy(const struct driver *d, int *blocks, const void *stub, int threads,
                             size_t shared) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    return rc != 0 ? rc
                   : d->cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, f, threads, shared);
}

static cudaError_t by_symbol(const struct driver *d, void **out, const void *stub) {
    return function_of(d, stub, (CUfunction *)out);
}

static cudaError_t cache_config(const struct driver *d, const void *stub) {
    CUfunction f;
    return function_of(d, stub, &f);
}

static cudaError_t func_name(const struct driver *d, const char **out, const void *stub) {
    CUfunction f;
    cudaError_t rc = function_of(d, stub, &f);
    return rc != 0 ? rc : d->cuFuncGetName(out, f);
}

ONE(cudaFuncSetAttribute, 0, set_attribute, (const void *f, int a, int v), f, a, v)
ONE(cudaFuncGetAttributes, 0, get_attributes, (cudaFuncAttributes *out, const void *f), out, f)
ONE(cudaFuncSetCacheConfig, 0, cache_config, (const void *f, int c), ((void)c, f))
ONE(cudaFuncGetName, 0, func_name, (const char **out, const void *f), out, f)
ONE(cudaGetFuncBySymbol, 0, by_symbol, (void **out, const void *f), out, f)
ONE(cudaOccupancyMaxActiveBlocksPerMultiprocessor, 0, occupancy,
    (int *n, const void *f, int threads, size_t shared), n, f, threads, shared)
ONE(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, 0, occupancy,
    (int *n, const void *f, int threads, size_t shared, unsigned int flags),
    ((void)flags, n), f, threads, shared)

static cudaError_t library_load(const struct driver *d, cudaLibrary_t *out, const void *code) {
    struct fat_binary *b = calloc(1, sizeof *b);
    CUlibrary library;
    cudaError_t rc;
    if (out == NULL || b == NULL) {
        free(b);
        return out == NULL ? 1 : 2;
    }
    rc = d->cuLibraryLoadData(&library, code, NULL, NULL, 0, NULL, NULL, 0);
    if (rc != 0) {
        free(b);
        return rc;
    }
    b->image = code;
    atomic_store(&b->library, library);
    *out = b;
    return 0;
}

/* Its kernels are launched by their handle, as `__cudaGetKernel`'s are. */
static cudaError_t library_kernel(const struct driver *d, cudaKernel_t *out, cudaLibrary_t library,
                                  const char *name) {
    struct kernel *k = calloc(1, sizeof *k);
    (void)d;
    if (k == NULL || library == NULL || name == NULL) {
        free(k);
        return 1;
    }
    *k = (struct kernel){.stub = k, .name = strdup(name), .binary = library};
    pthread_mutex_lock(&table_lock);
    put(k);
    pthread_mutex_unlock(&table_lock);
    *out = k;
    return 0;
}

ONE(cudaLibraryLoadData, 0, library_load,
    (cudaLibrary_t *out, const void *code, int *jo, void **jv, unsigned int jn, int *o, void **v,
     unsigned int n),
    ((void)jo, (void)jv, (void)jn, (void)o, (void)v, (void)n, out), code)
ONE(cudaLibraryGetKernel, 0, library_kernel,
    (cudaKernel_t *out, cudaLibrary_t library, const char *name), out, library, name)

API cudaError_t cudaLibraryUnload(cudaLibrary_t library) { return library == NULL ? keep(1) : 0; }
