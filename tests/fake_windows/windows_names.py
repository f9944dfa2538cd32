"""What Python's library lacks on Windows, by the "Availability" notes of docs.python.org."""

from __future__ import annotations

SIGNALS = ("SIGABRT", "SIGFPE", "SIGILL", "SIGINT", "SIGSEGV", "SIGTERM")  # and SIGBREAK, which only Windows has

MISSING_MODULES = frozenset({"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "posix", "syslog", "readline"})

_NAMES = {
    "signal": """
        SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT
        SIGRTMAX SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2
        SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK SIG_UNBLOCK alarm getitimer pause
        pidfd_send_signal pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigtimedwait
        sigwait sigwaitinfo
    """,
    "os": """
        O_CLOEXEC O_DIRECTORY O_DSYNC O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_SYNC O_TMPFILE WEXITSTATUS
        WIFEXITED WIFSIGNALED WNOHANG WTERMSIG chown chroot confstr copy_file_range ctermid eventfd fchdir
        fchmod fchown fdatasync fork forkpty fstatvfs getegid geteuid getgid getgroups getloadavg getpgid
        getpgrp getpriority getrandom getresgid getresuid getsid getuid getxattr killpg lchmod lchown lockf
        memfd_create mkfifo mknod nice openpty pathconf pidfd_open posix_fadvise posix_fallocate posix_spawn
        posix_spawnp pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_setaffinity
        sched_setscheduler sched_yield sendfile setegid seteuid setgid setgroups setns setpgid setpgrp
        setpriority setsid setuid setxattr splice statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname uname
        unshare wait wait3 wait4 waitid
    """,
    "time": """
        CLOCK_BOOTTIME CLOCK_MONOTONIC CLOCK_MONOTONIC_RAW CLOCK_PROCESS_CPUTIME_ID CLOCK_REALTIME
        CLOCK_THREAD_CPUTIME_ID clock_getres clock_gettime clock_gettime_ns clock_settime
        pthread_getcpuclockid tzset
    """,
    "socket": """
        AF_NETLINK AF_PACKET AF_UNIX CMSG_LEN CMSG_SPACE MSG_DONTWAIT MSG_NOSIGNAL SCM_RIGHTS SOCK_CLOEXEC
        SOCK_NONBLOCK SO_BINDTODEVICE SO_PEERCRED SO_REUSEPORT TCP_USER_TIMEOUT recv_fds send_fds
        sethostname
    """,
    "select": """
        EPOLLIN POLLIN epoll kqueue poll
    """,
}
MISSING_NAMES = {module: frozenset(names.split()) for module, names in _NAMES.items()}
