/* Loaded with LD_PRELOAD: makes calls that change files below a folder fail or slow, file locks missing, and the clock
   jump.

   FAULTS_BELOW   real path; only calls on paths below it, and on files opened there, count
   FAULTS_ERRNO   number of the error
   FAULTS_LASTS   1: once a call has failed, so do all later ones that make files grow (or, for EROFS, change anything),
                  until faults_arm is called or a folder of the name FAULTS_RESTART is created
   FAULTS_RESTART part of a name: creating a folder of that name starts counting; the n-th time, call n fails
   FAULTS_SLOW    "MS N LONG_MS": each of these calls, and opening and reading, takes MS longer, and every N-th LONG_MS
   FAULTS_NO_LOCKS  1: flock and fcntl locks fail with ENOLCK
   FAULTS_CLOCK   "SECONDS FILE": once FILE exists, the wall clock is SECONDS later (negative: earlier)

   A test may also call faults_place(FAULTS_BELOW, FAULTS_RESTART), faults_arm(n, errno, lasts),
   faults_slow(MS, N, LONG_MS), faults_locks(FAULTS_NO_LOCKS), faults_clock(SECONDS, FILE) and faults_count().  */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FILES 65536

static char below[PATH_MAX];
static char restart_name[256];
static atomic_int at, number, lasts, counted, has_failed, rounds;
static atomic_int slow_ms, slow_every, slow_long_ms, slowed;
static int no_locks;
static int clock_by;
static char clock_file[PATH_MAX];
static atomic_char is_below[FILES]; /* descriptors */

__attribute__((constructor)) static void start(void) {
  const char *text = getenv("FAULTS_BELOW");
  if (text) snprintf(below, sizeof below, "%s", text);
  if ((text = getenv("FAULTS_ERRNO"))) number = atoi(text);
  if ((text = getenv("FAULTS_LASTS"))) lasts = atoi(text);
  if ((text = getenv("FAULTS_NO_LOCKS"))) no_locks = atoi(text);
  int ms = 0, every = 0, long_ms = 0;
  if ((text = getenv("FAULTS_SLOW")) && sscanf(text, "%d %d %d", &ms, &every, &long_ms) == 3) {
    slow_ms = ms;
    slow_every = every;
    slow_long_ms = long_ms;
  }
  if ((text = getenv("FAULTS_CLOCK"))) sscanf(text, "%d %4095s", &clock_by, clock_file);
  if ((text = getenv("FAULTS_RESTART"))) snprintf(restart_name, sizeof restart_name, "%s", text);
}

void faults_arm(int call, int error, int last) {
  at = call;
  number = error;
  lasts = last;
  counted = 0;
  has_failed = 0;
}

void faults_slow(int ms, int every, int long_ms) {
  slow_ms = ms;
  slow_every = every;
  slow_long_ms = long_ms;
}

void faults_locks(int are_missing) { no_locks = are_missing; }

void faults_clock(int seconds, const char *file) {
  snprintf(clock_file, sizeof clock_file, "%s", file);
  clock_by = seconds;
}

void faults_place(const char *path, const char *restart) {
  snprintf(below, sizeof below, "%s", path);
  snprintf(restart_name, sizeof restart_name, "%s", restart);
  rounds = 0;
}

int faults_count(void) { return counted; }

enum { CHANGES, REMOVES, OPENS };

static void delay(void) {
  if (!slow_every) return;
  int ms = ++slowed % slow_every ? slow_ms : slow_long_ms;
  struct timespec left = {ms / 1000, ms % 1000 * 1000000L};
  int before = errno;
  while (nanosleep(&left, &left) && errno == EINTR) {}
  errno = before;
}

/* Whether this call fails: from call `at` on the first one that can have this error. */
static int fails(int kind) {
  int now = ++counted;
  delay();
  if (at == 0 || number == 0 || now < at || (has_failed && !lasts)) return 0;
  if (kind == REMOVES && (number == ENOSPC || number == EDQUOT)) return 0; /* it frees space */
  if (kind != OPENS && number == EMFILE) return 0;
  has_failed = 1;
  errno = number;
  return 1;
}

static int concerns(int folder, const char *path) {
  char whole[PATH_MAX * 2];
  if (!below[0] || !path) return 0;
  if (path[0] == '/') {
    snprintf(whole, sizeof whole, "%s", path);
  } else if (folder == AT_FDCWD) {
    if (!getcwd(whole, PATH_MAX)) return 0;
    snprintf(whole + strlen(whole), PATH_MAX, "/%s", path);
  } else { /* shutil.rmtree works with descriptors */
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, PATH_MAX - 1);
    if (length < 0) return 0;
    snprintf(whole + length, PATH_MAX, "/%s", path);
  }
  return strncmp(whole, below, strlen(below)) == 0;
}

static int open_flags_write(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

static int opened(int folder, const char *path, int flags, int file) {
  if (file >= 0 && file < FILES) {
    is_below[file] = concerns(folder, path);
    if (is_below[file] && !open_flags_write(flags)) delay();
  }
  return file;
}

static int of_file(int file) { return file >= 0 && file < FILES && is_below[file]; }

int close(int file) {
  if (file >= 0 && file < FILES) is_below[file] = 0;
  return REAL(close)(file);
}

#define MODE_OF(flags)                                 \
  mode_t mode = 0;                                     \
  if ((flags) & (O_CREAT | O_TMPFILE)) {               \
    va_list more;                                      \
    va_start(more, flags);                             \
    mode = va_arg(more, mode_t);                       \
    va_end(more);                                      \
  }

int open(const char *path, int flags, ...) {
  MODE_OF(flags)
  if (open_flags_write(flags) && concerns(AT_FDCWD, path) && fails(OPENS)) return -1;
  return opened(AT_FDCWD, path, flags, REAL(open)(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
  MODE_OF(flags)
  if (open_flags_write(flags) && concerns(AT_FDCWD, path) && fails(OPENS)) return -1;
  return opened(AT_FDCWD, path, flags, REAL(open64)(path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...) {
  MODE_OF(flags)
  if (open_flags_write(flags) && concerns(folder, path) && fails(OPENS)) return -1;
  return opened(folder, path, flags, REAL(openat)(folder, path, flags, mode));
}

int openat64(int folder, const char *path, int flags, ...) {
  MODE_OF(flags)
  if (open_flags_write(flags) && concerns(folder, path) && fails(OPENS)) return -1;
  return opened(folder, path, flags, REAL(openat64)(folder, path, flags, mode));
}

#define ON_FILE(type, name, parameters, arguments)      \
  type name parameters {                                \
    if (of_file(file) && fails(CHANGES)) return (type)-1;     \
    return REAL(name) arguments;                        \
  }

ON_FILE(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
ON_FILE(ssize_t, pwrite, (int file, const void *data, size_t size, off_t from), (file, data, size, from))
ON_FILE(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t from), (file, data, size, from))
ON_FILE(ssize_t, writev, (int file, const struct iovec *parts, int count), (file, parts, count))
ON_FILE(int, fsync, (int file), (file))
ON_FILE(int, fdatasync, (int file), (file))
ON_FILE(int, ftruncate, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, (int file, off64_t size), (file, size))

#define ON_READING(name, parameters, arguments) \
  ssize_t name parameters {                      \
    if (of_file(file)) delay();                  \
    return REAL(name) arguments;                 \
  }

ON_READING(read, (int file, void *data, size_t size), (file, data, size))
ON_READING(pread, (int file, void *data, size_t size, off_t from), (file, data, size, from))
ON_READING(pread64, (int file, void *data, size_t size, off64_t from), (file, data, size, from))
ON_READING(preadv, (int file, const struct iovec *parts, int count, off_t from), (file, parts, count, from))
ON_READING(preadv64, (int file, const struct iovec *parts, int count, off64_t from), (file, parts, count, from))

#define ON_PATH(name, parameters, folder, path, arguments, kind) \
  int name parameters {                                             \
    if (concerns(folder, path) && fails(kind)) return -1;        \
    return REAL(name) arguments;                                    \
  }

ON_PATH(rename, (const char *from, const char *to), AT_FDCWD, to, (from, to), CHANGES)
ON_PATH(renameat, (int a, const char *from, int b, const char *to), b, to, (a, from, b, to), CHANGES)
ON_PATH(link, (const char *from, const char *to), AT_FDCWD, to, (from, to), CHANGES)
ON_PATH(unlink, (const char *path), AT_FDCWD, path, (path), REMOVES)
ON_PATH(unlinkat, (int folder, const char *path, int flags), folder, path, (folder, path, flags), REMOVES)
ON_PATH(rmdir, (const char *path), AT_FDCWD, path, (path), REMOVES)

static void restart(const char *path) {
  const char *name = strrchr(path, '/');
  if (restart_name[0] && strstr(name ? name : path, restart_name)) {
    int round = ++rounds;
    faults_arm(round, number, lasts);
  }
}

int mkdir(const char *path, mode_t mode) {
  if (concerns(AT_FDCWD, path)) {
    restart(path);
    if (fails(CHANGES)) return -1;
  }
  return REAL(mkdir)(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
  if (concerns(folder, path)) {
    restart(path);
    if (fails(CHANGES)) return -1;
  }
  return REAL(mkdirat)(folder, path, mode);
}

int flock(int file, int operation) {
  if (no_locks) return errno = ENOLCK, -1;
  return REAL(flock)(file, operation);
}

static int lock_call(int command) {
  return no_locks && (command == F_SETLK || command == F_SETLKW || command == F_GETLK);
}

int fcntl(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  if (lock_call(command)) return errno = ENOLCK, -1;
  return REAL(fcntl)(file, command, argument);
}

int fcntl64(int file, int command, ...) {
  va_list more;
  va_start(more, command);
  void *argument = va_arg(more, void *);
  va_end(more);
  if (lock_call(command)) return errno = ENOLCK, -1;
  return REAL(fcntl64)(file, command, argument);
}

static int shift(void) { return clock_by && access(clock_file, F_OK) == 0 ? clock_by : 0; }

int clock_gettime(clockid_t clock, struct timespec *found) {
  int result = REAL(clock_gettime)(clock, found);
  if (result == 0 && clock == CLOCK_REALTIME) found->tv_sec += shift();
  return result;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone) {
  int result = REAL(gettimeofday)(found, zone);
  if (result == 0) found->tv_sec += shift();
  return result;
}

time_t time(time_t *found) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
