/* A driver library for tests: two GPUs whose figures are constants, and calls that fail when a test says so. */
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct device { u32 index; } device;

enum { OK = 0, INVALID = 2, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, MAX_FAILURES = 32, MAX_XIDS = 256 };

static device devices[2] = {{0}, {1}};
static struct { char name[64]; int device, code; } failures[MAX_FAILURES];
static u64 xids[2][MAX_XIDS];
static int num_failures, num_xids[2], next_xid[2], event_sets;
static u64 throttle = 1, ecc_uncorrected = 0;

/* What a test sets. `function` "*" is every call on that device; code 0 makes it work again; device -1 is all of them. */
void fake_reset(void) {
    num_failures = event_sets = 0;
    memset(num_xids, 0, sizeof num_xids);
    memset(next_xid, 0, sizeof next_xid);
    throttle = 1;
    ecc_uncorrected = 0;
}
void fake_fail(const char *function, int device, int code) {
    strncpy(failures[num_failures].name, function, 63);
    failures[num_failures].device = device;
    failures[num_failures++].code = code;
}
void fake_xid(int device, u64 code) { xids[device][num_xids[device]++] = code; }
void fake_throttle(u64 mask) { throttle = mask; }
void fake_ecc(u64 count) { ecc_uncorrected = count; }
int fake_event_sets(void) { return event_sets; }

static int code_of(const char *function, int device) {
    for (int i = num_failures - 1; i >= 0; i--) /* the latest word counts */
        if ((!strcmp(failures[i].name, function) || (device >= 0 && !strcmp(failures[i].name, "*"))) &&
            (failures[i].device == -1 || failures[i].device == device))
            return failures[i].code;
    return OK;
}
#define CHECK(device) do { int code = code_of(__func__, device); if (code) return code; } while (0)

int nvmlInitWithFlags(u32 flags) { (void)flags; CHECK(-1); return OK; }
int nvmlShutdown(void) { CHECK(-1); return OK; }
const char *nvmlErrorString(int code) { (void)code; return "fake error"; }
int nvmlDeviceGetCount_v2(u32 *count) { CHECK(-1); *count = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, device **handle) { CHECK((int)index); *handle = &devices[index]; return OK; }

int nvmlDeviceGetName(device *d, char *out, u32 size) { CHECK((int)d->index); strncpy(out, "Fake H200", size); return OK; }
int nvmlDeviceGetUUID(device *d, char *out, u32 size) {
    CHECK((int)d->index);
    strncpy(out, d->index ? "GPU-b" : "GPU-a", size);
    return OK;
}

typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u64 total, free, used; } memory_v1;
int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *out) {
    CHECK((int)d->index);
    out->total = 1000; out->reserved = 10; out->free = 90; out->used = 900;
    return OK;
}
int nvmlDeviceGetMemoryInfo(device *d, memory_v1 *out) {
    CHECK((int)d->index);
    out->total = 1000; out->free = 90; out->used = 910;
    return OK;
}

typedef struct { u32 pid; u64 used; u32 gpu_instance, compute_instance; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(device *d, u32 *count, process *out) {
    CHECK((int)d->index);
    if (!out) { *count = 2; return INSUFFICIENT_SIZE; }
    out[0] = (process){100, 850, 0, 0};
    out[1] = (process){101, (u64)-1, 0, 0}; /* not known to the driver */
    *count = 2;
    return OK;
}

typedef struct { u32 gpu, memory; } utilisation;
int nvmlDeviceGetUtilizationRates(device *d, utilisation *out) {
    CHECK((int)d->index);
    out->gpu = 97; out->memory = 40;
    return OK;
}
int nvmlDeviceGetClockInfo(device *d, int kind, u32 *mhz) { CHECK((int)d->index); *mhz = kind == 2 ? 2600 : 1200; return OK; }
int nvmlDeviceGetMaxClockInfo(device *d, int kind, u32 *mhz) { CHECK((int)d->index); *mhz = kind == 2 ? 2619 : 1980; return OK; }
int nvmlDeviceGetCurrentClocksEventReasons(device *d, u64 *mask) { CHECK((int)d->index); *mask = throttle; return OK; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, u64 *mask) { CHECK((int)d->index); *mask = throttle; return OK; }

typedef struct { u64 reference, violation; } violation;
int nvmlDeviceGetViolationStatus(device *d, int policy, violation *out) {
    CHECK((int)d->index);
    out->reference = 1; out->violation = policy ? 7000000000ull : 3000000000ull;
    return OK;
}
int nvmlDeviceGetPowerUsage(device *d, u32 *mw) { CHECK((int)d->index); *mw = 650500; return OK; }
int nvmlDeviceGetEnforcedPowerLimit(device *d, u32 *mw) { CHECK((int)d->index); *mw = 700000; return OK; }
int nvmlDeviceGetTemperature(device *d, int sensor, u32 *celsius) { (void)sensor; CHECK((int)d->index); *celsius = 61; return OK; }
int nvmlDeviceGetPcieThroughput(device *d, int counter, u32 *kb) { CHECK((int)d->index); *kb = counter ? 2000 : 1000; return OK; }
int nvmlDeviceGetPcieReplayCounter(device *d, u32 *count) { CHECK((int)d->index); *count = 3; return OK; }
int nvmlDeviceGetTotalEccErrors(device *d, int type, int counter, u64 *count) {
    (void)counter;
    CHECK((int)d->index);
    *count = type ? ecc_uncorrected : 12;
    return OK;
}

typedef struct { device *device; u64 type, data; u32 gpu_instance, compute_instance; } event;
typedef struct { int device; } event_set;
static event_set sets[MAX_XIDS];
int nvmlEventSetCreate(event_set **out) { CHECK(-1); *out = &sets[event_sets++ % MAX_XIDS]; return OK; }
int nvmlEventSetFree(event_set *set) { (void)set; CHECK(-1); event_sets--; return OK; }
int nvmlDeviceRegisterEvents(device *d, u64 types, event_set *set) {
    CHECK((int)d->index);
    if (types != 8) return INVALID;
    set->device = (int)d->index;
    return OK;
}
int nvmlEventSetWait_v2(event_set *set, event *out, u32 timeout_ms) {
    int d = set->device;
    CHECK(d);
    if (timeout_ms) return INVALID; /* the probe must never wait */
    if (next_xid[d] == num_xids[d]) return TIMEOUT;
    out->device = &devices[d];
    out->type = 8;
    out->data = xids[d][next_xid[d]++];
    return OK;
}
