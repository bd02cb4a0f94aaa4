/* A library of a program that names ranges, with NVIDIA's own header. */
#include <nvtx3/nvToolsExt.h>

#include <string.h>

#define OURS __attribute__((visibility("default")))

static nvtxEventAttributes_t attributes(int type) {
    nvtxEventAttributes_t a;
    memset(&a, 0, sizeof a);
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = type;
    return a;
}

OURS int push(const char *text) { return nvtxRangePushA(text); }
OURS int push_wide(const wchar_t *text) { return nvtxRangePushW(text); }
OURS int pop(void) { return nvtxRangePop(); }
OURS unsigned long long start(const char *text) { return nvtxRangeStartA(text); }
OURS void end(unsigned long long id) { nvtxRangeEnd(id); }
OURS void mark(const char *text) { nvtxMarkA(text); }

OURS void *domain(const char *name) { return nvtxDomainCreateA(name); }
OURS void *text(void *domain, const char *text) { return nvtxDomainRegisterStringA(domain, text); }
OURS int push_in(void *domain, void *text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_REGISTERED);
    a.message.registered = text;
    return nvtxDomainRangePushEx(domain, &a);
}
OURS int push_ascii_in(void *domain, const char *text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_ASCII);
    a.message.ascii = text;
    return nvtxDomainRangePushEx(domain, &a);
}
OURS int pop_in(void *domain) { return nvtxDomainRangePop(domain); }
OURS unsigned long long start_in(void *domain, const char *text) {
    nvtxEventAttributes_t a = attributes(NVTX_MESSAGE_TYPE_ASCII);
    a.message.ascii = text;
    return nvtxDomainRangeStartEx(domain, &a);
}
OURS void end_in(void *domain, unsigned long long id) { nvtxDomainRangeEnd(domain, id); }

/* Many at once, from a thread that shares nothing with others. */
OURS void many(const char *text, int n) {
    for (int i = 0; i < n; i++) {
        nvtxRangePushA(text);
        nvtxRangePop();
    }
}
