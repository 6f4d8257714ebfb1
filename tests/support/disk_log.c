/* Preloaded into a server: logs what its shards write to their files and when they flush them, in order.

   A record is a header, the path, and the bytes written.  It is appended when the call has returned, in one
   write, so the records of several processes stand in an order that agrees with who waited for whom. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

struct __attribute__((packed)) header { uint8_t op; uint16_t path; uint32_t size; uint64_t offset; };

enum { WRITE = 1, TRUNCATE, FLUSH, UNLINK };

static int log_fd(void)
{
    static int fd = -2;
    if (fd == -2) {
        const char *path = getenv("DISK_LOG");
        fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    }
    return fd;
}

static int is_ours(const char *path)
{
    const char *name = strrchr(path, '/');
    return name && !strncmp(name, "/shard-", 7) && strstr(name, ".db") && !strstr(name, "-shm");
}

static void note(int op, const char *path, const void *data, size_t size, uint64_t offset)
{
    int fd = log_fd();
    if (fd < 0 || !is_ours(path)) return;
    struct header header = { op, strlen(path), size, offset };
    struct iovec parts[3] = { { &header, sizeof header }, { (void *)path, header.path }, { (void *)data, size } };
    if (writev(fd, parts, 3) < 0) abort();
}

static void note_fd(int op, int fd, const void *data, size_t size, uint64_t offset)
{
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length <= 0) return;
    path[length] = 0;
    note(op, path, data, size, offset);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REAL(pwrite);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) note_fd(WRITE, fd, data, done, offset);
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    REAL(pwrite64);
    ssize_t done = real(fd, data, size, offset);
    if (done > 0) note_fd(WRITE, fd, data, done, offset);
    return done;
}

int ftruncate(int fd, off_t size)
{
    REAL(ftruncate);
    int failed = real(fd, size);
    if (!failed) note_fd(TRUNCATE, fd, 0, 0, size);
    return failed;
}

int ftruncate64(int fd, off64_t size)
{
    REAL(ftruncate64);
    int failed = real(fd, size);
    if (!failed) note_fd(TRUNCATE, fd, 0, 0, size);
    return failed;
}

int fsync(int fd)
{
    REAL(fsync);
    int failed = real(fd);
    if (!failed) note_fd(FLUSH, fd, 0, 0, 0);
    return failed;
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    int failed = real(fd);
    if (!failed) note_fd(FLUSH, fd, 0, 0, 0);
    return failed;
}

int unlink(const char *path)
{
    REAL(unlink);
    int failed = real(path);
    if (!failed) note(UNLINK, path, 0, 0, 0);
    return failed;
}
