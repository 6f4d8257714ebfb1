/* Preloaded into a server: calls about its files fail as long as a file of the call's name is in the folder
   BAD_DISK.  That file holds an errno, and how the names end of the files that are meant:
   "5 .db"; * are all files of shards, also those without a name. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REAL(name) static __typeof__(name) *real; if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

static int ends_so(int fd, const char *ending)
{
    char link[64], path[PATH_MAX + 1];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!strcmp(ending, "*")) return strstr(path, "/shard-") || strstr(path, " (deleted)") || strstr(path, "/#");
    size_t size = strlen(ending);
    return (size_t)length >= size && !strcmp(path + length - size, ending);
}

/* Whether the call fails; errno says how. */
static int fails(const char *call, int fd)
{
    char path[PATH_MAX], ending[64];
    int number;
    const char *folder = getenv("BAD_DISK");
    if (!folder) return 0;
    snprintf(path, sizeof path, "%s/%s", folder, call);
    FILE *file = fopen(path, "re");
    if (!file) return 0;
    int found = fscanf(file, "%d %63s", &number, ending);
    fclose(file);
    if (found != 2 || !ends_so(fd, ending)) return 0;
    errno = number;
    return 1;
}

ssize_t pread(int fd, void *data, size_t size, off_t offset)
{
    REAL(pread);
    return fails("read", fd) ? -1 : real(fd, data, size, offset);
}

ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    REAL(pread64);
    return fails("read", fd) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    REAL(pwrite);
    return fails("write", fd) ? -1 : real(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    REAL(pwrite64);
    return fails("write", fd) ? -1 : real(fd, data, size, offset);
}

int fsync(int fd)
{
    REAL(fsync);
    return fails("sync", fd) ? -1 : real(fd);
}

int fdatasync(int fd)
{
    REAL(fdatasync);
    return fails("sync", fd) ? -1 : real(fd);
}
