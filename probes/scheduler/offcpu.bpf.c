/*
 * Off-CPU intervals of the threads that made a traced call.
 *
 * Joined to probes/cuda/calls.bpf.c: such a thread has a slot there. A switch between two other
 * threads costs two look-ups in that array.
 */

BPF_RINGBUF_OUTPUT(offcpu, SIDE_PAGES);

/* Address of the futex that the current thread is about to sleep on, 0 for anything else. */
static __always_inline u64 futex_of_current(void)
{
#if HAS_TASK_REGISTERS
    struct pt_regs *registers = (struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());
    u64 call = 0, address = 0;
    bpf_probe_read_kernel(&call, sizeof(call), &registers->orig_ax);
    if (call != SYSCALL_FUTEX)
        return 0;
    bpf_probe_read_kernel(&address, sizeof(address), &registers->di);
    return address;
#else
    return 0;
#endif
}

/* State of a thread of which only the thread id is known. */
static __always_inline struct slot *find_thread(u32 tid)
{
    u32 index = tid & (N_SLOTS - 1);
    struct slot *slot = slots.lookup(&index);
    if (!slot || !slot->pid_tgid)
        return 0;
    if ((u32)slot->pid_tgid == tid && slot->pid_tgid > FORMER)
        return slot;
    index ^= 1;
    slot = slots.lookup(&index);
    if (slot && (u32)slot->pid_tgid == tid && slot->pid_tgid > FORMER)
        return slot;
    return 0;
}

int scheduler_switch(struct sched_switch_arguments *arguments)
{
    struct slot *left = find_thread(arguments->prev_pid);
    if (left && arguments->prev_pid) {
        left->state = arguments->prev_state;
        left->cpu_from = bpf_get_smp_processor_id();
        left->taker_tid = arguments->next_pid;
        __builtin_memcpy(left->taker_name, arguments->next_comm, 16);
        left->wake_ns = 0;
        left->waker = 0;
        left->futex = arguments->prev_state & STATE_SLEEPING ? futex_of_current() : 0;
        left->left_ns = bpf_ktime_get_ns();
    }
    struct slot *back = find_thread(arguments->next_pid);
    if (!back || !back->left_ns || !arguments->next_pid)
        return 0;
    u64 left_ns = back->left_ns;
    back->left_ns = 0;
    struct offcpu_record *record = offcpu.ringbuf_reserve(sizeof(*record));
    if (!record) {
        count(OFFCPU_LOST);
        return 0;
    }
    record->start_ns = left_ns;
    record->end_ns = bpf_ktime_get_ns();
    record->wake_ns = back->wake_ns;
    record->pid_tgid = back->pid_tgid;
    record->state = back->state;
    record->cpu_from = back->cpu_from;
    record->cpu_to = bpf_get_smp_processor_id();
    record->taker_tid = back->taker_tid;
    record->occupant_pid_tgid = bpf_get_current_pid_tgid();
    record->waker_pid_tgid = back->waker;
    record->futex = back->futex;
    __builtin_memcpy(record->taker_name, back->taker_name, 16);
    __builtin_memcpy(record->occupant_name, arguments->prev_comm, 16);
    __builtin_memcpy(record->waker_name, back->waker_name, 16);
    offcpu.ringbuf_submit(record, BPF_RB_NO_WAKEUP);
    return 0;
}

int scheduler_waking(struct sched_waking_arguments *arguments)
{
    struct slot *slot = find_thread(arguments->pid);
    if (!slot || !slot->left_ns || slot->wake_ns)
        return 0;
    slot->waker = bpf_get_current_pid_tgid();
    bpf_get_current_comm(slot->waker_name, sizeof(slot->waker_name));
    slot->wake_ns = bpf_ktime_get_ns();
    return 0;
}
