/*
 * Garbage collections of an interpreter, at the markers by which it tells of them.
 *
 * The cookie says which marker it is: 0 a collection begins, 1 it ends. Short ones are left out.
 */

BPF_HASH(collecting, u64, u64, 4096);
BPF_RINGBUF_OUTPUT(collections, COLLECTION_PAGES);

int collector_marker(struct pt_regs *ctx)
{
    u64 id = bpf_get_current_pid_tgid();
    u64 now = bpf_ktime_get_ns();
    if (!bpf_get_attach_cookie(ctx)) {
        collecting.update(&id, &now);
        return 0;
    }
    u64 *begin = collecting.lookup(&id);
    if (!begin)
        return 0;
    u64 start = *begin;
    collecting.delete(&id);
    if (now - start < SHORTEST_COLLECTION_NS)
        return 0;
    struct collection_record *record = collections.ringbuf_reserve(sizeof(*record));
    if (!record) {
        count(COLLECTIONS_LOST);
        return 0;
    }
    record->start_ns = start;
    record->end_ns = now;
    record->pid_tgid = id;
    collections.ringbuf_submit(record, BPF_RB_NO_WAKEUP);
    return 0;
}
