// Hardware faults of the running kernel (guard pages, misaligned vector accesses, integer division by zero) and the limit
// on processor time: the handler jumps back to the launcher, which records a fault. The process survives, its handlers
// and its timer are restored after the launch.
#include "signals.h"

#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "state.h"

namespace simt {

namespace {

constexpr int kFatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int kFatalCount = 4;

sigjmp_buf back_to_launcher;
volatile sig_atomic_t armed;
int caught_signal;
uintptr_t caught_address, caught_pc;
bool address_is_known;
struct sigaction saved[kFatalCount + 1];
stack_t saved_stack;
alignas(16) char handler_stack[64 * 1024];
timer_t timer;
int timer_signal;

uintptr_t program_counter(void* context) {
#if defined(__x86_64__)
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
#else
    return static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.pc);
#endif
}

void handle(int signal_number, siginfo_t* info, void* context) {
    if (!armed) {
        if (signal_number == timer_signal) return;
        std::signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    armed = 0;
    caught_signal = signal_number;
    caught_pc = program_counter(context);
    caught_address = reinterpret_cast<uintptr_t>(info->si_addr);
    // The kernel gives no address for a general-protection fault: a misaligned vector access or a non-canonical pointer.
    address_is_known = info->si_code != SI_KERNEL;
    siglongjmp(back_to_launcher, 1);
}

// The best known place: the signal may have come in the runtime or in a library on behalf of the kernel.
Site place_of_signal() {
    if (kernel_image.holds(caught_pc)) return {nullptr, 0, caught_pc};
    const Site place = copy_in_progress.file ? copy_in_progress : Site{nullptr, 0, last_access_pc};
    copy_in_progress = Site{};
    return place;
}

void report_memory_fault(Site site) {
    if (!address_is_known) {
        report(kMisaligned, site, "a vector access to an address that is not a multiple of its size, or a wild pointer");
        return;
    }
    if (address_in_stacks(caught_address)) {
        report(kOutOfBounds, site, "the thread's local memory is used up (64 KiB), or a local array is overrun");
        return;
    }
    int buffer;
    long offset;
    char text[160];
    describe_address(caught_address, &buffer, &offset, text, sizeof text);
    FaultRecord* fault = report(kOutOfBounds, site, "access to %s", text);
    fault->buffer = buffer;
    fault->offset = offset;
}

}  // namespace

bool run_guarded(void (*body)()) {
    if (sigsetjmp(back_to_launcher, 1) == 0) {
        armed = 1;
        body();
        armed = 0;
        return true;
    }
    const Site site = place_of_signal();
    if (caught_signal == timer_signal)
        report(kTimeout, site, "the launch used more than %g s of processor time: an endless loop or a wait for "
               "another thread", launch->time_limit_s);
    else if (caught_signal == SIGFPE)
        report(kArithmetic, site, "integer division by zero");
    else if (caught_signal == SIGILL)
        report(kTrap, site, "illegal instruction");
    else
        report_memory_fault(site);
    return false;
}

void install_handlers() {
    timer_signal = SIGRTMIN + 3;
    stack_t stack{};
    stack.ss_sp = handler_stack;
    stack.ss_size = sizeof handler_stack;
    sigaltstack(&stack, &saved_stack);
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < kFatalCount; i++) sigaction(kFatal[i], &action, &saved[i]);
    sigaction(timer_signal, &action, &saved[kFatalCount]);

    struct sigevent event {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = timer_signal;
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer);
    struct itimerspec limit {};
    limit.it_value.tv_sec = static_cast<time_t>(launch->time_limit_s);
    limit.it_value.tv_nsec = static_cast<long>((launch->time_limit_s - static_cast<double>(limit.it_value.tv_sec)) * 1e9);
    limit.it_interval.tv_sec = 1;  // again, should it expire while the launcher itself runs
    timer_settime(timer, 0, &limit, nullptr);
}

void restore_handlers() {
    timer_delete(timer);
    for (int i = 0; i < kFatalCount; i++) sigaction(kFatal[i], &saved[i], nullptr);
    sigaction(timer_signal, &saved[kFatalCount], nullptr);
    sigaltstack(&saved_stack, nullptr);
}

}  // namespace simt
