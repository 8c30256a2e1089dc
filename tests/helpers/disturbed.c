/* Preloaded into the processes of a study: a disk with errors, and a clock that jumps.

   While the file FAIL_IF exists, calls for files below FAIL_BELOW fail with EIO: syncs if the file
   is empty, writes too if it is not. Each failure adds the path to FAIL_LOG. The wall clock is
   ahead by the seconds in the file CLOCK_OFFSET. The monotonic clock is left alone. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int fails(int file, int is_write) {
    const char *switched = getenv("FAIL_IF"), *below = getenv("FAIL_BELOW"), *log = getenv("FAIL_LOG");
    struct stat status;
    char link[64], path[4096];
    if (!switched || !below || !log || stat(switched, &status) || (is_write && !status.st_size))
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length < 0 || strncmp(path, below, strlen(below)))
        return 0;
    path[length] = '\n';
    int to = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    syscall(SYS_write, to, path, length + 1);
    close(to);
    errno = EIO;
    return 1;
}

ssize_t write(int file, const void *data, size_t size) {
    return fails(file, 1) ? -1 : syscall(SYS_write, file, data, size);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return fails(file, 1) ? -1 : syscall(SYS_pwrite64, file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return pwrite64(file, data, size, at);
}

int fsync(int file) { return fails(file, 0) ? -1 : syscall(SYS_fsync, file); }

int fdatasync(int file) { return fails(file, 0) ? -1 : syscall(SYS_fdatasync, file); }

static long offset(void) {
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char text[32] = "0";
    if (file >= 0) {
        ssize_t length = syscall(SYS_read, file, text, sizeof text - 1);
        text[length > 0 ? length : 0] = 0;
        syscall(SYS_close, file);
    }
    return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += offset();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    now->tv_sec += offset();
    return result;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}
