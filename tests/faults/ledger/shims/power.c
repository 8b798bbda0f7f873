/* Lets a power cut lose what was not synced. Preload it into every process that writes the files.

   For each write to a file under POWER_DIR, it first stores what the write replaces, in a file of
   POWER_LOG that is named after the device and the inode. A sync of the file empties that file. So
   the stored bytes always lead from the file as it is back to the file as it was last synced, and
   shimming.py puts them back after it has killed the processes. Syncs do not reach the real disk.

   Simplified: creating, renaming and deleting a file is durable at once, as a file system may do it.
   The contents of a file are not, under whatever name. Writes through a memory map are not seen; the
   only such file is SQLite's -shm, which SQLite builds again.

   A file of POWER_LOG: a header, then records of offset, length, size of the file before, bytes.
   The header has the end of the last complete record and the monotonic time of the last sync (ns).
   A lock on it makes the write and its record one step, for all processes. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FILES 65536
#define HEADER 16

static struct {
  char tracked; /* 0: unknown or not ours; 1: under POWER_DIR */
  int undo;     /* descriptor + 1 of the file in POWER_LOG; 0: not opened yet */
} files[FILES];

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *folder, *undo_folder;

static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fallocate)(int, int, off_t, off_t);
static int (*real_posix_fallocate)(int, off_t, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);

static void in_child(void) {
  pthread_mutex_init(&mutex, NULL);
  for (int fd = 0; fd < FILES; fd++)
    if (files[fd].undo) { /* a lock belongs to the open file, which the parent shares */
      real_close(files[fd].undo - 1);
      files[fd].undo = 0;
    }
}

/* PostgreSQL writes the title of its processes over the environment. */
static const char *copied(const char *variable) {
  const char *value = getenv(variable);
  return value ? strdup(value) : NULL;
}

__attribute__((constructor)) static void init(void) {
  static int done;
  if (done) return;
  done = 1;
  real_open = dlsym(RTLD_NEXT, "open");
  real_openat = dlsym(RTLD_NEXT, "openat");
  real_close = dlsym(RTLD_NEXT, "close");
  real_write = dlsym(RTLD_NEXT, "write");
  real_pwrite = dlsym(RTLD_NEXT, "pwrite");
  real_writev = dlsym(RTLD_NEXT, "writev");
  real_pwritev = dlsym(RTLD_NEXT, "pwritev");
  real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
  real_fallocate = dlsym(RTLD_NEXT, "fallocate");
  real_posix_fallocate = dlsym(RTLD_NEXT, "posix_fallocate");
  real_fsync = dlsym(RTLD_NEXT, "fsync");
  real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
  folder = copied("POWER_DIR");
  undo_folder = copied("POWER_LOG");
  pthread_atfork(NULL, NULL, in_child);
}

static void must_at(int ok, int line) {
  if (!ok) { /* a lost record would make a later check wrong: end the process instead */
    dprintf(2, "power.c: line %d: cannot keep the record of a write: %s\n", line, strerror(errno));
    abort();
  }
}
#define must(ok) must_at(!!(ok), __LINE__)

/* Whether the descriptor is a file under POWER_DIR. Called once, after it was opened. */
static void look(int fd) {
  char link[64], path[4096];
  struct stat s;
  if (fd < 0 || fd >= FILES || !folder || !undo_folder) return;
  files[fd].tracked = 0;
  if (fstat(fd, &s) || !S_ISREG(s.st_mode)) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n <= 0) return;
  path[n] = 0;
  size_t length = strlen(folder);
  if (strncmp(path, folder, length) || path[length] != '/') return;
  if (n > 4 && !strcmp(path + n - 4, "-shm")) return;
  files[fd].tracked = 1;
}

static int tracked(int fd) { return fd >= 0 && fd < FILES && files[fd].tracked; }

/* Lock the record of a file and return its descriptor. */
static int lock(int fd) {
  pthread_mutex_lock(&mutex);
  if (!files[fd].undo) {
    char path[4200];
    struct stat s;
    must(!fstat(fd, &s));
    snprintf(path, sizeof path, "%s/%lx-%lx", undo_folder, (long)s.st_dev, (long)s.st_ino);
    int undo = real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    must(undo >= 0);
    fchmod(undo, 0666);
    int high = fcntl(undo, F_DUPFD_CLOEXEC, 700);
    if (high >= 0) {
      real_close(undo);
      undo = high;
    }
    files[fd].undo = undo + 1;
  }
  int undo = files[fd].undo - 1;
  while (flock(undo, LOCK_EX)) must(errno == EINTR);
  return undo;
}

static void unlock(int undo) {
  flock(undo, LOCK_UN);
  pthread_mutex_unlock(&mutex);
}

static int64_t end_of(int undo) {
  int64_t end = 0;
  if (pread(undo, &end, 8, 0) != 8 || end < HEADER) end = HEADER;
  return end;
}

/* Forget the record: the file is synced, or new. */
static void forget(int undo) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t header[2] = {HEADER, now.tv_sec * 1000000000LL + now.tv_nsec};
  must(real_pwrite(undo, header, HEADER, 0) == HEADER);
  must(!real_ftruncate(undo, HEADER));
}

/* Store the bytes of the file from `offset` on, and its size. */
static void keep(int fd, int undo, off_t offset, off_t length) {
  struct stat s;
  must(!fstat(fd, &s));
  off_t left = s.st_size > offset ? s.st_size - offset : 0;
  if (length < left) left = length;
  int64_t end = end_of(undo), record[3] = {offset, left, s.st_size};
  must(real_pwrite(undo, record, sizeof record, end) == sizeof record);
  off_t at = end + sizeof record;
  int source = fd;
  if (left && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    source = real_open(link, O_RDONLY | O_CLOEXEC);
    must(source >= 0);
  }
  char buffer[65536];
  for (off_t done = 0; done < left;) {
    off_t rest = left - done;
    size_t wanted = rest < (off_t)sizeof buffer ? (size_t)rest : sizeof buffer;
    ssize_t n = pread(source, buffer, wanted, offset + done);
    must(n > 0 && real_pwrite(undo, buffer, n, at + done) == n);
    done += n;
  }
  if (source != fd) real_close(source);
  end = at + left;
  must(real_pwrite(undo, &end, 8, 0) == 8);
}

static off_t place(int fd) {
  struct stat s;
  if (fcntl(fd, F_GETFL) & O_APPEND) return fstat(fd, &s) ? 0 : s.st_size;
  return lseek(fd, 0, SEEK_CUR);
}

static size_t total(const struct iovec *parts, int count) {
  size_t n = 0;
  for (int i = 0; i < count; i++) n += parts[i].iov_len;
  return n;
}

#define GUARDED(type, fd, offset, length, call) \
  do {                                          \
    int undo_ = lock(fd);                       \
    keep(fd, undo_, offset, length);            \
    type result_ = (call);                      \
    int error_ = errno;                         \
    if (fcntl(fd, F_GETFL) & O_DSYNC) forget(undo_); \
    unlock(undo_);                              \
    errno = error_;                             \
    return result_;                             \
  } while (0)

ssize_t write(int fd, const void *data, size_t n) {
  init();
  if (!tracked(fd)) return real_write(fd, data, n);
  GUARDED(ssize_t, fd, place(fd), n, real_write(fd, data, n));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
  init();
  if (!tracked(fd)) return real_pwrite(fd, data, n, at);
  GUARDED(ssize_t, fd, at, n, real_pwrite(fd, data, n, at));
}
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { return pwrite(fd, data, n, at); }

ssize_t writev(int fd, const struct iovec *parts, int count) {
  init();
  if (!tracked(fd)) return real_writev(fd, parts, count);
  GUARDED(ssize_t, fd, place(fd), total(parts, count), real_writev(fd, parts, count));
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
  init();
  if (!tracked(fd)) return real_pwritev(fd, parts, count, at);
  GUARDED(ssize_t, fd, at, total(parts, count), real_pwritev(fd, parts, count, at));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
  return pwritev(fd, parts, count, at);
}

int ftruncate(int fd, off_t size) {
  init();
  if (!tracked(fd)) return real_ftruncate(fd, size);
  GUARDED(int, fd, size, INT64_MAX / 2, real_ftruncate(fd, size));
}
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int fallocate(int fd, int mode, off_t at, off_t n) {
  init();
  if (!tracked(fd)) return real_fallocate(fd, mode, at, n);
  GUARDED(int, fd, at, n, real_fallocate(fd, mode, at, n));
}
int fallocate64(int fd, int mode, off64_t at, off64_t n) { return fallocate(fd, mode, at, n); }

int posix_fallocate(int fd, off_t at, off_t n) {
  init();
  if (!tracked(fd)) return real_posix_fallocate(fd, at, n);
  GUARDED(int, fd, at, 0, real_posix_fallocate(fd, at, n));
}
int posix_fallocate64(int fd, off64_t at, off64_t n) { return posix_fallocate(fd, at, n); }

static int synced(int fd) {
  int undo = lock(fd);
  forget(undo);
  unlock(undo);
  return 0;
}
int fsync(int fd) {
  init();
  return tracked(fd) ? synced(fd) : real_fsync(fd);
}
int fdatasync(int fd) {
  init();
  return tracked(fd) ? synced(fd) : real_fdatasync(fd);
}

/* A new file begins without a record: another file may have had its inode. */
static int opened(int fd, int is_new, int flags) {
  int error = errno;
  look(fd);
  if (tracked(fd)) {
    files[fd].undo = 0;
    if (is_new) {
      int undo = lock(fd);
      forget(undo);
      unlock(undo);
    } else if (flags & O_TRUNC) {
      ftruncate(fd, 0);
    }
  } else if (fd >= 0 && (flags & O_TRUNC) && !is_new) {
    real_ftruncate(fd, 0);
  }
  errno = error;
  return fd;
}

int openat(int at, const char *path, int flags, ...) {
  init();
  mode_t mode = 0;
  if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  if (!folder || (flags & O_PATH)) return real_openat(at, path, flags, mode);
  int error = errno;
  int is_new = (flags & O_CREAT) && faccessat(at, path, F_OK, 0);
  errno = error;
  int writes = (flags & O_ACCMODE) != O_RDONLY; /* O_TRUNC is done by `opened`, which keeps a copy */
  int fd = real_openat(at, path, writes && !is_new ? flags & ~O_TRUNC : flags, mode);
  return opened(fd, is_new, writes ? flags : flags & ~O_TRUNC);
}
int openat64(int at, const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return openat(at, path, flags, mode);
}
int open(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return openat(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return openat(AT_FDCWD, path, flags, mode);
}
int __open_2(const char *path, int flags) { return openat(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return openat(AT_FDCWD, path, flags, 0); }
int __openat_2(int at, const char *path, int flags) { return openat(at, path, flags, 0); }
int __openat64_2(int at, const char *path, int flags) { return openat(at, path, flags, 0); }
int creat(const char *path, mode_t mode) {
  return openat(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int close(int fd) {
  init();
  if (fd >= 0 && fd < FILES && files[fd].tracked) {
    pthread_mutex_lock(&mutex);
    files[fd].tracked = 0;
    if (files[fd].undo) real_close(files[fd].undo - 1);
    files[fd].undo = 0;
    pthread_mutex_unlock(&mutex);
  }
  return real_close(fd);
}
