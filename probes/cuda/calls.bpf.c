/*
 * Records at entry and return of the traced functions, and the set of target processes.
 *
 * The constants, the records and LAYOUT_CASES come from probes/cuda/program.py. Each entry
 * and return costs one look-up in an array: a thread's state lies at its thread id modulo N_SLOTS
 * (or one beside it), and only the thread itself writes the fields of its calls.
 */

struct slot {
    u64 pid_tgid; /* 0 free, FORMER was used */
    u32 sequence; /* entries and returns so far */
    u32 depth;    /* traced calls it is inside */
    u64 frames[MAX_DEPTH]; /* stack pointers at entry of these calls */
    u16 functions[MAX_DEPTH]; /* and which functions they are */
    /* Written by the scheduler's programs. */
    u64 left_ns; /* when it left the CPU, 0 on a CPU */
    u64 wake_ns;
    u64 waker;
    u64 futex; /* address it sleeps on, 0 for none */
    u32 state;
    u32 cpu_from;
    u32 taker_tid;
    u32 unused;
    char taker_name[16];
    char waker_name[16];
};

#define FORMER 1
#define SLOT_COLLISIONS 0
#define TOO_DEEP 1
#define PROCESSES_LOST 2
#define OFFCPU_LOST 3
#define TARGETS_FULL 4
#define RING_FULL 5 /* told by function in lost_entries and lost_returns */
#define COLLECTIONS_LOST 6
#define N_COUNTERS 8

BPF_ARRAY(slots, struct slot, N_SLOTS);
BPF_HASH(targets, u32, u64, MAX_TARGETS);
BPF_PERCPU_ARRAY(lost_entries, u64, N_SYMBOLS);
BPF_PERCPU_ARRAY(lost_returns, u64, N_SYMBOLS);
BPF_PERCPU_ARRAY(counters, u64, N_COUNTERS);
BPF_RINGBUF_OUTPUT(entries, ENTRY_PAGES);
BPF_RINGBUF_OUTPUT(returns, RETURN_PAGES);
BPF_RINGBUF_OUTPUT(processes, SIDE_PAGES);
BPF_RINGBUF_OUTPUT(wakes, 1);

static __always_inline void count(u32 counter)
{
    u64 *value = counters.lookup(&counter);
    if (value)
        __sync_fetch_and_add(value, 1);
}

/* State of a thread, or null when it has none. */
static __always_inline struct slot *find_slot(u64 id)
{
    u32 index = (u32)id & (N_SLOTS - 1);
    struct slot *slot = slots.lookup(&index);
    if (!slot || slot->pid_tgid == id)
        return slot;
    if (!slot->pid_tgid)
        return 0;
    index ^= 1;
    slot = slots.lookup(&index);
    if (slot && slot->pid_tgid == id)
        return slot;
    return 0;
}

/* State of a thread that makes its first traced call, or null when it is no target. */
static __always_inline struct slot *claim_slot(u64 id)
{
    u32 tgid = id >> 32;
    if (!targets.lookup(&tgid))
        return 0;
    u32 index = (u32)id & (N_SLOTS - 1);
    struct slot *slot = slots.lookup(&index);
    if (!slot)
        return 0;
    /* A slot of the same thread id is left over from a thread whose end was not seen. */
    if (slot->pid_tgid > FORMER && (u32)slot->pid_tgid != (u32)id) {
        index ^= 1;
        slot = slots.lookup(&index);
        if (!slot)
            return 0;
        if (slot->pid_tgid > FORMER && (u32)slot->pid_tgid != (u32)id) {
            count(SLOT_COLLISIONS);
            return 0;
        }
    }
    slot->sequence = 0;
    slot->depth = 0;
    slot->left_ns = 0;
    slot->wake_ns = 0;
    slot->pid_tgid = id;
    return slot;
}

/* A frame's index; the mask is there for the verifier, so the compiler must not drop it. */
static __always_inline u64 *frame_at(struct slot *slot, u64 index)
{
    asm volatile("%0 &= %1" : "+r"(index) : "i"(MAX_DEPTH - 1));
    return &slot->frames[index];
}

static __always_inline u16 *function_at(struct slot *slot, u64 index)
{
    asm volatile("%0 &= %1" : "+r"(index) : "i"(MAX_DEPTH - 1));
    return &slot->functions[index];
}

/* Leave the frames at or below a stack pointer: their functions have ended. */
static __always_inline u32 leave_frames(struct slot *slot, u64 sp)
{
    u32 depth = slot->depth;
#pragma unroll
    for (int i = 0; i < MAX_DEPTH; i++) {
        if (!depth || *frame_at(slot, depth - 1) > sp)
            break;
        depth--;
    }
    return depth;
}

static __always_inline struct call_entry *begin_call(struct pt_regs *ctx, u64 cookie)
{
    u64 id = bpf_get_current_pid_tgid();
    struct slot *slot = find_slot(id);
    if (!slot) {
        slot = claim_slot(id);
        if (!slot)
            return 0;
    }
    u64 sp = ctx->sp;
    u32 depth = slot->depth ? leave_frames(slot, sp) : 0;
    if (depth >= MAX_DEPTH) {
        count(TOO_DEEP);
        return 0;
    }
    u32 sequence = slot->sequence + 1;
    slot->sequence = sequence;
    u32 flags = 0;
    if (!(cookie & COOKIE_NO_RETURN)) {
        *frame_at(slot, depth) = sp;
        *function_at(slot, depth) = cookie;
        slot->depth = depth + 1;
    } else {
        slot->depth = depth;
        flags = NO_RETURN;
    }
    struct call_entry *call = entries.ringbuf_reserve(sizeof(*call));
    if (!call) {
        u32 function = (u16)cookie;
        u64 *value = lost_entries.lookup(&function);
        if (value)
            *value += 1;
        count(RING_FULL);
        return 0;
    }
    call->time_ns = bpf_ktime_get_ns();
    call->pid_tgid = id;
    call->function = cookie;
    call->depth = depth | flags;
    call->sequence = sequence;
    return call;
}

/* A read that fails leaves zeros. */
#define READ(target, size, address)                                                                \
    if (bpf_probe_read_user(target, size, (void *)(address)))                                      \
        call->depth |= ARGUMENTS_UNREAD;

/* What to read for functions without code of their own, see descriptions() there. */
struct description {
    u32 words[6];
};
BPF_ARRAY(described, struct description, N_SYMBOLS);

int call_entry(struct pt_regs *ctx)
{
    u64 cookie = bpf_get_attach_cookie(ctx);
    struct call_entry *call = begin_call(ctx, cookie);
    if (!call)
        return 0;
    switch (cookie >> COOKIE_LAYOUT_SHIFT) {
    LAYOUT_CASES
    default: {
        u32 function = (u16)cookie;
        struct description *description = described.lookup(&function);
        u64 registers[6] = {ctx->di, ctx->si, ctx->dx, ctx->cx, ctx->r8, ctx->r9};
        if (!description)
            break;
        for (int i = 0; i < 6; i++) {
            u32 word = description->words[i];
            u32 slot = (word & 0xff) - 1;
            u64 value = 0;
            if (word) {
                if (slot < 6)
                    value = registers[slot & 7];
                else
                    READ(&value, 8, ctx->sp + 8 * (u64)(slot - 5))
                if (word & 0x100)
                    READ(&value, 8, value + (word >> 16))
            }
            call->words[i] = value;
        }
    }
    }
    entries.ringbuf_submit(call, BPF_RB_NO_WAKEUP);
    return 0;
}

int call_return(struct pt_regs *ctx)
{
    u64 time_ns = bpf_ktime_get_ns();
    u64 id = bpf_get_current_pid_tgid();
    struct slot *slot = find_slot(id);
    if (!slot)
        return 0;
    u64 sp = ctx->sp - 8; /* the return address is gone from the stack */
    u32 depth = leave_frames(slot, sp - 1);
    u32 sequence = slot->sequence + 1;
    u32 flags = 0;
    u32 function;
    if (depth && *frame_at(slot, depth - 1) == sp) {
        depth--;
        function = *function_at(slot, depth); /* costs less than the cookie */
    } else {
        function = (u16)bpf_get_attach_cookie(ctx);
        flags = NO_ENTRY;
    }
    slot->depth = depth;
    slot->sequence = sequence;
    struct call_return *call = returns.ringbuf_reserve(sizeof(*call));
    if (!call) {
        u64 *value = lost_returns.lookup(&function);
        if (value)
            *value += 1;
        count(RING_FULL);
        return 0;
    }
    call->time_ns = time_ns;
    call->pid_tgid = id;
    call->function = function;
    call->depth = depth | flags;
    call->sequence = sequence;
    call->result = ctx->ax;
    returns.ringbuf_submit(call, BPF_RB_NO_WAKEUP);
    return 0;
}

#define PROCESS_FORK 1
#define PROCESS_EXEC 2
#define PROCESS_EXIT 3
#define PROCESS_LOAD 4
#define CLONE_THREAD_FLAG 0x10000

static __always_inline void send_process(u64 id, u32 kind, u32 child)
{
    struct process_record *record = processes.ringbuf_reserve(sizeof(*record));
    if (!record) {
        count(PROCESSES_LOST);
        return;
    }
    record->time_ns = bpf_ktime_get_ns();
    record->pid_tgid = id;
    record->kind = kind;
    record->child_pid = child;
    bpf_get_current_comm(record->name, sizeof(record->name));
    processes.ringbuf_submit(record, BPF_RB_NO_WAKEUP);
}

/* Wake who attaches to new libraries; without room it is awake already. */
static __always_inline void wake(u32 pid, u32 kind)
{
    struct process_record *record = wakes.ringbuf_reserve(sizeof(*record));
    if (!record)
        return;
    __builtin_memset(record, 0, sizeof(*record));
    record->time_ns = bpf_ktime_get_ns();
    record->pid_tgid = (u64)pid << 32 | pid;
    record->kind = kind;
    wakes.ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);
}

/* uprobe on the loader's _dl_debug_state: it has begun or ended to map or unmap libraries. */
int library_loaded(struct pt_regs *ctx)
{
    u32 tgid = bpf_get_current_pid_tgid() >> 32;
    if (targets.lookup(&tgid))
        wake(tgid, PROCESS_LOAD);
    return 0;
}

/* task:task_newtask: a child of a target is a target before it runs. */
int process_fork(struct task_newtask_arguments *arguments)
{
    if (arguments->clone_flags & CLONE_THREAD_FLAG)
        return 0;
    u64 id = bpf_get_current_pid_tgid();
    u32 tgid = id >> 32;
    if (!targets.lookup(&tgid))
        return 0;
    u32 child = arguments->pid;
    u64 value = bpf_ktime_get_ns();
    if (targets.update(&child, &value))
        count(TARGETS_FULL);
    send_process(id, PROCESS_FORK, child);
    wake(child, PROCESS_FORK);
    return 0;
}

int process_exec(struct sched_process_exec_arguments *arguments)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 tgid = id >> 32;
    if (!targets.lookup(&tgid))
        return 0;
    struct slot *slot = find_slot(id);
    if (slot) {
        slot->depth = 0; /* the old image's frames are gone */
        slot->left_ns = 0;
    }
    send_process(id, PROCESS_EXEC, 0);
    wake(tgid, PROCESS_EXEC);
    return 0;
}

/* sched:sched_process_exit: of each thread. */
int process_exit(struct sched_process_exit_arguments *arguments)
{
    u64 id = bpf_get_current_pid_tgid();
    u32 tgid = id >> 32;
    struct slot *slot = find_slot(id);
    if (slot)
        slot->pid_tgid = FORMER;
#ifdef sched_process_exit_HAS_group_dead
    bool is_end = arguments->group_dead;
#else
    bool is_end = (u32)id == tgid; /* other threads may go on, they keep their slots */
#endif
    if (!slot && !is_end)
        return 0;
    if (!targets.lookup(&tgid))
        return 0;
    if (is_end)
        targets.delete(&tgid);
    send_process(id, PROCESS_EXIT, is_end);
    return 0;
}
