/* A preload library that makes one system call on files below a folder fail, or kills the process there.
 *
 * fault_arm(root, at, error, mode) starts to count the calls that change files below `root`, or open them. At the call
 * number `at` (from 1; 0: none), by `mode`:
 *   0  this call fails with `error`
 *   1  this call and all later ones fail with `error`
 *   2  the process is killed before the call
 *   3  the process is killed after the call; of a write after half of its bytes
 * fault_count() is how many calls there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[4096];
static long at;
static int error_number, mode, armed;
static atomic_long calls;

void fault_arm(const char *folder, long number, int error, int how) {
    snprintf(root, sizeof root, "%s", folder);
    at = number, error_number = error, mode = how;
    atomic_store(&calls, 0);
    armed = 1;
}

long fault_count(void) { return atomic_load(&calls); }

static int of_descriptor(int fd, char *out, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, size - 1);
    if (length < 0) return 0;
    out[length] = 0;
    return 1;
}

static int below_root(int folder, const char *path) {
    char full[8192];
    size_t length = strlen(root);
    if (path == NULL) {
        if (!of_descriptor(folder, full, sizeof full)) return 0;
    } else if (path[0] == '/') {
        snprintf(full, sizeof full, "%s", path);
    } else {
        char base[4096];
        if (folder == AT_FDCWD ? getcwd(base, sizeof base) == NULL : !of_descriptor(folder, base, sizeof base)) return 0;
        snprintf(full, sizeof full, "%s/%s", base, path);
    }
    return strncmp(full, root, length) == 0 && (full[length] == 0 || full[length] == '/');
}

enum { GO, FAIL, KILL_AFTER };

static int next(int folder, const char *path) {
    int before = errno;
    if (!armed || !below_root(folder, path)) {
        errno = before;
        return GO;
    }
    long number = atomic_fetch_add(&calls, 1) + 1;
    errno = before;
    if (at == 0 || number < at || (number > at && mode != 1)) return GO;
    if (mode == 2) kill(getpid(), SIGKILL);
    if (mode == 3) return KILL_AFTER;
    errno = error_number;
    return FAIL;
}

static void die(void) { kill(getpid(), SIGKILL); }

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define AROUND(type, name, folder, path, call)       \
    int what = next(folder, path);                   \
    if (what == FAIL) return -1;                     \
    type result = REAL(name) call;                   \
    if (what == KILL_AFTER) die();                   \
    return result;
#define OPEN(name, folder, parameters, call)         \
    int name parameters {                            \
        mode_t m = 0;                                \
        if (flags & (O_CREAT | O_TMPFILE)) {         \
            va_list rest;                            \
            va_start(rest, flags);                   \
            m = va_arg(rest, mode_t);                \
            va_end(rest);                            \
        }                                            \
        AROUND(int, name, folder, path, call)        \
    }

OPEN(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, m))
OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, m))
OPEN(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, m))
OPEN(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, m))

ssize_t write(int fd, const void *data, size_t size) {
    int what = next(fd, NULL);
    if (what == FAIL) return -1;
    ssize_t result = REAL(write)(fd, data, what == KILL_AFTER ? size / 2 : size);
    if (what == KILL_AFTER) die();
    return result;
}
#define PWRITE(name, offset_type)                                                                    \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) {                        \
        int what = next(fd, NULL);                                                                   \
        if (what == FAIL) return -1;                                                                 \
        ssize_t result = REAL(name)(fd, data, what == KILL_AFTER ? size / 2 : size, offset);         \
        if (what == KILL_AFTER) die();                                                               \
        return result;                                                                               \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

int fsync(int fd) { AROUND(int, fsync, fd, NULL, (fd)) }
int fdatasync(int fd) { AROUND(int, fdatasync, fd, NULL, (fd)) }
int ftruncate(int fd, off_t size) { AROUND(int, ftruncate, fd, NULL, (fd, size)) }
int ftruncate64(int fd, off64_t size) { AROUND(int, ftruncate64, fd, NULL, (fd, size)) }
int rename(const char *from, const char *to) { AROUND(int, rename, AT_FDCWD, to, (from, to)) }
int renameat(int a, const char *from, int b, const char *to) { AROUND(int, renameat, b, to, (a, from, b, to)) }
int unlink(const char *path) { AROUND(int, unlink, AT_FDCWD, path, (path)) }
int unlinkat(int folder, const char *path, int flags) { AROUND(int, unlinkat, folder, path, (folder, path, flags)) }
int link(const char *from, const char *to) { AROUND(int, link, AT_FDCWD, to, (from, to)) }
int linkat(int a, const char *from, int b, const char *to, int flags) { AROUND(int, linkat, b, to, (a, from, b, to, flags)) }
int mkdir(const char *path, mode_t m) { AROUND(int, mkdir, AT_FDCWD, path, (path, m)) }
int mkdirat(int folder, const char *path, mode_t m) { AROUND(int, mkdirat, folder, path, (folder, path, m)) }
