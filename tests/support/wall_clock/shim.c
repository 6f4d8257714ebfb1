/* Moves the wall clock of a process by as many ns as stand in the file that WALL_CLOCK names, at any time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*real)(clockid_t, struct timespec *);
static volatile int64_t *ahead;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("WALL_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
        ahead = page == MAP_FAILED ? NULL : page;
        close(file);
    }
}

int clock_gettime(clockid_t id, struct timespec *out) {
    if (!real) begin();
    int status = real(id, out);
    if (!status && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = out->tv_sec * 1000000000LL + out->tv_nsec + *ahead;
        out->tv_sec = ns / 1000000000LL;
        out->tv_nsec = ns % 1000000000LL;
    }
    return status;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
