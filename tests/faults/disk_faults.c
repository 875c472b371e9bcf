/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before a command (LD_PRELOAD), it counts the calls that change files below one folder, lets one of them
 * fail, and records what each has done, so that disk_model.py can say what a power cut would leave. From the
 * environment:
 *   TRF_FAULT_FOLDER  the folder, absolute; nothing is done without it
 *   TRF_FAULT_AT      which call fails, from 1 on; 0: none
 *   TRF_FAULT_KIND    what happens there: ENOSPC, EIO or EINTR; SHORT (half of a write is done, the rest is not), KILL
 *                     (SIGKILL before the call), TORN (SIGKILL after half of a write), TERM (SIGTERM before it)
 *   TRF_FAULT_LASTS   1: all later calls fail, too, except removals: a disk that stays full or broken
 *   TRF_FAULT_LOG     a file that gets a record of each call that had an effect */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a call does; in records, and in the name that the log of a fault gives it. */
typedef enum fault_call {
    CALL_OPEN = 1,
    CALL_WRITE,
    CALL_RESIZE,
    CALL_SYNC,
    CALL_CLOSE,
    CALL_RENAME,
    CALL_LINK,
    CALL_UNLINK,
    CALL_MKDIR,
    CALL_RMDIR,
    CALL_SYMLINK
} fault_call;

/* A record, followed by `first` and `second` bytes. */
typedef struct fault_record {
    uint32_t call;
    int32_t fd;
    uint64_t offset; /* of a write; a size; flags of open and rename */
    uint32_t first, second;
} fault_record;

enum {
    MAX_FDS = 4096
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[PATH_MAX];
static const char *kind = "";
static long fails_at, calls;
static int lasts, log_fd = -1;
static unsigned char is_ours[MAX_FDS];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void) {
    const char *at = getenv("TRF_FAULT_AT"), *log = getenv("TRF_FAULT_LOG"), *place = getenv("TRF_FAULT_FOLDER");
    if (!place)
        return;
    snprintf(folder, sizeof folder, "%s", place);
    fails_at = at ? atol(at) : 0;
    kind = getenv("TRF_FAULT_KIND") ? getenv("TRF_FAULT_KIND") : "";
    lasts = getenv("TRF_FAULT_LASTS") != NULL;
    if (log)
        log_fd = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Makes a path absolute. @return whether it is below the folder. */
static int below(const char *path, char whole[PATH_MAX]) {
    char here[PATH_MAX];
    if (!folder[0])
        return 0;
    if (path[0] == '/')
        snprintf(whole, PATH_MAX, "%s", path);
    else if (!getcwd(here, sizeof here) || snprintf(whole, PATH_MAX, "%s/%s", here, path) >= PATH_MAX)
        return 0;
    const size_t length = strlen(folder);
    return strncmp(whole, folder, length) == 0 && (whole[length] == '/' || !whole[length]);
}

static int ours(int fd) { return fd >= 0 && fd < MAX_FDS && is_ours[fd]; }

static void record(fault_call call, int fd, uint64_t offset, const void *first, size_t first_bytes, const void *second,
                   size_t second_bytes) {
    const int saved = errno;
    const fault_record head = {(uint32_t)call, fd, offset, (uint32_t)first_bytes, (uint32_t)second_bytes};
    if (log_fd < 0)
        return;
    if (REAL(write)(log_fd, &head, sizeof head) != sizeof head ||
        REAL(write)(log_fd, first, first_bytes) != (ssize_t)first_bytes ||
        REAL(write)(log_fd, second, second_bytes) != (ssize_t)second_bytes)
        abort(); /* a log that lacks something would prove what is not so */
    errno = saved;
}

static int is(const char *name) { return strcmp(kind, name) == 0; }

/* Counts a call; locks until leave. *cut: whether only half of a write is done. @return whether the call fails, with
 * errno set. */
static int enter(fault_call call, int *cut) {
    pthread_mutex_lock(&lock);
    const long number = ++calls;
    const int removes = call == CALL_UNLINK || call == CALL_RMDIR || call == CALL_CLOSE;
    *cut = 0;
    if (!fails_at || number < fails_at || (number > fails_at && (!lasts || removes)))
        return 0;
    *cut = call == CALL_WRITE && (is("SHORT") || is("TORN"));
    if (is("KILL") || (is("TORN") && !*cut))
        raise(SIGKILL);
    if (is("TERM") && number == fails_at)
        raise(SIGTERM);
    errno = is("ENOSPC") ? ENOSPC : is("EIO") ? EIO : is("EINTR") ? EINTR : 0;
    return errno != 0;
}

static int leave(int result) {
    pthread_mutex_unlock(&lock);
    return result;
}

static int open_file(const char *path, int flags, mode_t mode) {
    char whole[PATH_MAX];
    int cut;
    const int changes = (flags & O_CREAT) || (flags & O_ACCMODE) != O_RDONLY;
    if (!below(path, whole) || (!changes && !(flags & O_DIRECTORY)))
        return REAL(open)(path, flags, mode);
    if (!changes) { /* a folder, which may be synced */
        const int fd = REAL(open)(path, flags, mode);
        pthread_mutex_lock(&lock);
        if (fd >= 0 && fd < MAX_FDS) {
            is_ours[fd] = 1;
            record(CALL_OPEN, fd, (uint64_t)flags, whole, strlen(whole), NULL, 0);
        }
        return leave(fd);
    }
    if (enter(CALL_OPEN, &cut))
        return leave(-1);
    const int fd = REAL(open)(path, flags, mode);
    if (fd >= 0 && fd < MAX_FDS) {
        is_ours[fd] = 1;
        record(CALL_OPEN, fd, (uint64_t)flags, whole, strlen(whole), NULL, 0);
    }
    return leave(fd);
}

#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...);                                                                        \
    int name(const char *path, int flags, ...) {                                                                       \
        va_list arguments;                                                                                             \
        va_start(arguments, flags);                                                                                    \
        const mode_t mode = flags & O_CREAT ? (mode_t)va_arg(arguments, unsigned) : 0;                                 \
        va_end(arguments);                                                                                             \
        return open_file(path, flags, mode);                                                                           \
    }
OPEN(open)
OPEN(open64)
int __open_2(const char *path, int flags);
int __open_2(const char *path, int flags) { return open_file(path, flags, 0); }
int __open64_2(const char *path, int flags);
int __open64_2(const char *path, int flags) { return open_file(path, flags, 0); }

static ssize_t write_at(int fd, const void *bytes, size_t size, off_t offset) {
    int cut;
    if (!ours(fd))
        return REAL(pwrite)(fd, bytes, size, offset);
    if (enter(CALL_WRITE, &cut))
        return leave(-1);
    const ssize_t put = REAL(pwrite)(fd, bytes, cut ? (size + 1) / 2 : size, offset);
    if (put > 0)
        record(CALL_WRITE, fd, (uint64_t)offset, bytes, (size_t)put, NULL, 0);
    if (cut && is("TORN"))
        raise(SIGKILL);
    leave(0);
    return put;
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset) { return write_at(fd, bytes, size, offset); }
ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t offset) { return write_at(fd, bytes, size, offset); }

/* Nothing that is tested writes in another way; if that changes, the test has to know. */
#define REFUSE(type, name, arguments, passed, fd)                                                                      \
    type name arguments;                                                                                               \
    type name arguments {                                                                                              \
        if (ours(fd))                                                                                                  \
            abort();                                                                                                   \
        return REAL(name) passed;                                                                                      \
    }
struct iovec;
ssize_t writev(int fd, const struct iovec *parts, int count);
ssize_t sendfile(int out, int in, off_t *offset, size_t count);
REFUSE(ssize_t, write, (int fd, const void *bytes, size_t size), (fd, bytes, size), fd)
REFUSE(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count), fd)
REFUSE(ssize_t, sendfile, (int out, int in, off_t *offset, size_t count), (out, in, offset, count), out)
REFUSE(ssize_t, copy_file_range, (int in, off64_t *at, int out, off64_t *to, size_t count, unsigned flags),
       (in, at, out, to, count, flags), out)

static int resize(int fd, off_t size) {
    int cut;
    if (!ours(fd))
        return REAL(ftruncate)(fd, size);
    if (enter(CALL_RESIZE, &cut))
        return leave(-1);
    const int result = REAL(ftruncate)(fd, size);
    if (result == 0)
        record(CALL_RESIZE, fd, (uint64_t)size, NULL, 0, NULL, 0);
    return leave(result);
}

int ftruncate(int fd, off_t size) { return resize(fd, size); }
int ftruncate64(int fd, off64_t size) { return resize(fd, size); }

static int sync_file(int fd, int (*real)(int fd)) {
    int cut;
    if (!ours(fd))
        return real(fd);
    if (enter(CALL_SYNC, &cut))
        return leave(-1);
    /* The model needs only to know of it, and a real one would take most of the campaign's time. */
    record(CALL_SYNC, fd, 0, NULL, 0, NULL, 0);
    return leave(0);
}

int fsync(int fd) { return sync_file(fd, REAL(fsync)); }
int fdatasync(int fd) { return sync_file(fd, REAL(fdatasync)); }

int close(int fd) {
    int cut, fails;
    if (!ours(fd))
        return REAL(close)(fd);
    fails = enter(CALL_CLOSE, &cut);
    const int code = errno, result = REAL(close)(fd); /* Linux closes it in any case */
    is_ours[fd] = 0;
    record(CALL_CLOSE, fd, 0, NULL, 0, NULL, 0);
    if (fails)
        errno = code;
    return leave(fails ? -1 : result);
}

/* Runs `action` on two paths, or on one. */
#define TWO_PATHS(call, flags, from, to, action)                                                                       \
    do {                                                                                                               \
        char first[PATH_MAX], second[PATH_MAX];                                                                        \
        int cut;                                                                                                       \
        if (!below(to, second))                                                                                        \
            return action;                                                                                             \
        if (call == CALL_SYMLINK)                                                                                      \
            snprintf(first, sizeof first, "%s", from);                                                                 \
        else                                                                                                           \
            below(from, first);                                                                                        \
        if (enter(call, &cut))                                                                                         \
            return leave(-1);                                                                                          \
        const int result = action;                                                                                     \
        if (result == 0)                                                                                               \
            record(call, -1, flags, first, strlen(first), second, strlen(second));                                     \
        return leave(result);                                                                                          \
    } while (0)

int rename(const char *from, const char *to) { TWO_PATHS(CALL_RENAME, 0, from, to, REAL(rename)(from, to)); }

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (getenv("TRF_FAULT_NO_RENAMEAT2")) {
        errno = EINVAL; /* as on a file system that cannot do it */
        return -1;
    }
    TWO_PATHS(CALL_RENAME, flags, from, to, REAL(renameat2)(from_folder, from, to_folder, to, flags));
}

int link(const char *from, const char *to) { TWO_PATHS(CALL_LINK, 0, from, to, REAL(link)(from, to)); }
int symlink(const char *text, const char *to) { TWO_PATHS(CALL_SYMLINK, 0, text, to, REAL(symlink)(text, to)); }

#define ONE_PATH(call, path, action)                                                                                   \
    do {                                                                                                               \
        char whole[PATH_MAX];                                                                                          \
        int cut;                                                                                                       \
        if (!below(path, whole))                                                                                       \
            return action;                                                                                             \
        if (enter(call, &cut))                                                                                         \
            return leave(-1);                                                                                          \
        const int result = action;                                                                                     \
        if (result == 0)                                                                                               \
            record(call, -1, 0, whole, strlen(whole), NULL, 0);                                                        \
        return leave(result);                                                                                          \
    } while (0)

int unlink(const char *path) { ONE_PATH(CALL_UNLINK, path, REAL(unlink)(path)); }
int rmdir(const char *path) { ONE_PATH(CALL_RMDIR, path, REAL(rmdir)(path)); }
int mkdir(const char *path, mode_t mode) { ONE_PATH(CALL_MKDIR, path, REAL(mkdir)(path, mode)); }

int remove(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0 && S_ISDIR(info.st_mode) ? rmdir(path) : unlink(path);
}
