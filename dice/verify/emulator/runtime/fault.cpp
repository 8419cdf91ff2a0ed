// From a signal or a failed check to one JSON line and the process's end.
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "isolation.h"
#include "runtime.h"

namespace dice_emu {
namespace {

int fault_fd = 2;
std::atomic<bool> faulted{false};

void append_escaped(char* out, size_t capacity, const char* text) {
  size_t used = strlen(out);
  for (; *text != '\0' && used + 3 < capacity; ++text) {
    const char c = *text;
    if (c == '"' || c == '\\') out[used++] = '\\';
    out[used++] = static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  out[used] = '\0';
}

// "kernel f, block (1,0,0), thread (2,0,0)", or "code outside kernels".
void describe_place(char* out, size_t capacity) {
  if (tls_worker == nullptr) {
    snprintf(out, capacity, "host code (outside any kernel)");
  } else if (!tls_worker->running_thread()) {
    snprintf(out, capacity, "kernel %s, block (%u,%u,%u)", tls_worker->launch()->kernel->name, blockIdx.x, blockIdx.y,
             blockIdx.z);
  } else {
    snprintf(out, capacity, "kernel %s, block (%u,%u,%u), thread (%u,%u,%u)", tls_worker->launch()->kernel->name,
             blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
  }
}

[[noreturn]] void finish(const char* kind, const char* sentence) {
  if (faulted.exchange(true))
    for (;;) pause();  // another worker is already reporting
  char place[300], line[1200];
  describe_place(place, sizeof place);
  snprintf(line, sizeof line, "{\"fault\": \"%s\", \"message\": \"", kind);
  append_escaped(line, sizeof line - 8, place);
  append_escaped(line, sizeof line - 8, ": ");
  append_escaped(line, sizeof line - 8, sentence);
  strcat(line, ".\"}\n");
  fflush(stdout);
  const char* rest = line;
  size_t left = strlen(line);
  while (left > 0) {
    const ssize_t written = write(fault_fd, rest, left);
    if (written <= 0) break;
    rest += written;
    left -= static_cast<size_t>(written);
  }
  _exit(kFaultExit);
}

enum class Access { read, write, unknown };

Access access_of(const ucontext_t* context) {
#if defined(__x86_64__)
  return context->uc_mcontext.gregs[REG_ERR] & 2 ? Access::write : Access::read;
#elif defined(__aarch64__)
  const auto* record = reinterpret_cast<const _aarch64_ctx*>(context->uc_mcontext.__reserved);
  while (record->magic != 0) {
    if (record->magic == ESR_MAGIC)
      return reinterpret_cast<const esr_context*>(record)->esr >> 6 & 1 ? Access::write : Access::read;
    record = reinterpret_cast<const _aarch64_ctx*>(reinterpret_cast<const char*>(record) + record->size);
  }
  return Access::unknown;
#else
  (void)context;
  return Access::unknown;
#endif
}

const char* verb(Access access) {
  return access == Access::write ? "wrote" : access == Access::read ? "read" : "accessed";
}

[[noreturn]] void report_region(const Region& region, const char* address, const char* did) {
  char what[300], text[500];
  if (region.label[0] == '\0') {
    snprintf(what, sizeof what, "%s%s of %zu bytes", strcmp(region.kind, "tensor") == 0 ? "a " : "the ", region.kind,
             region.size);
  } else {
    snprintf(what, sizeof what, "%s%s%s (%zu bytes)", strcmp(region.kind, "tensor") == 0 ? "" : region.kind,
             strcmp(region.kind, "tensor") == 0 ? "" : " ", region.label, region.size);
  }
  if (!region.live) {
    snprintf(text, sizeof text, "it %s %s after it was freed", did, what);
    finish("illegal_address", text);
  }
  if (region.closed) {
    snprintf(text, sizeof text, "it %s %s, which is in the GPU's memory: only kernels and copies may", did, what);
    finish("illegal_address", text);
  }
  const ptrdiff_t past = address - (region.data + region.size);
  if (past == 0) {
    snprintf(text, sizeof text, "it %s just past the end of %s", did, what);
  } else if (past > 0) {
    snprintf(text, sizeof text, "it %s %td bytes past the end of %s", did, past, what);
  } else {
    snprintf(text, sizeof text, "it %s %td bytes before the start of %s", did, region.data - address, what);
  }
  finish("out_of_bounds", text);
}

[[noreturn]] void report_address(const char* address, const char* did) {
  char text[200];
  if (tls_worker != nullptr && tls_worker->owns_stack_guard(address))
    finish("stack_overflow", "its local variables and calls need more stack than a thread has");
  if (const Region* region = region_at(address)) report_region(*region, address, did);
  if (reinterpret_cast<uintptr_t>(address) < 65536) {
    snprintf(text, sizeof text, "it %s through a null pointer (address %p)", did, static_cast<const void*>(address));
  } else {
    snprintf(text, sizeof text, "it %s address %p, which belongs to no tensor or shared array", did,
             static_cast<const void*>(address));
  }
  finish("illegal_address", text);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  if (signal == SIGFPE) finish("trap", "an integer division by zero");
  if (signal == SIGILL || signal == SIGTRAP)  // only the compiler's alignment checks trap; __trap() comes another way
    finish("illegal_address", "a load or store whose address is not a multiple of its type's size (misaligned address)");
  if (signal == SIGBUS && info->si_code == BUS_ADRALN)
    finish("illegal_address", "a load or store whose address is not a multiple of its size (misaligned address)");
  // x86 gives no address for what it refuses before translation: unaligned vector accesses, non-canonical pointers.
  if (signal == SIGSEGV && info->si_code == SI_KERNEL)
    finish("illegal_address", "a misaligned vector access (such as float4 at an odd offset) or a wild pointer");
  const auto* address = static_cast<const char*>(info->si_addr);
  const Region* region = region_at(address);
  if (region != nullptr && tls_worker != nullptr && tls_worker->isolation().touch(*region, address)) return;
  if (region != nullptr && reopened(*region)) return;  // another thread is in host code, not this one
  report_address(address, verb(access_of(static_cast<ucontext_t*>(context))));
}

}  // namespace

void ensure_alternate_stack() {
  stack_t present;
  if (sigaltstack(nullptr, &present) == 0 && !(present.ss_flags & SS_DISABLE)) return;
  constexpr size_t kBytes = 64 * 1024;
  stack_t stack{};
  stack.ss_sp = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack.ss_size = kBytes;
  if (stack.ss_sp != MAP_FAILED) sigaltstack(&stack, nullptr);
}

void install_handlers() {
  struct sigaction action {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigaction(signal, &action, nullptr);
}

void fault(const char* kind, const char* format, ...) {
  char text[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  finish(kind, text);
}

bool Worker::owns_stack_guard(const char* address) const {
  const auto page = sysconf(_SC_PAGESIZE);
  for (unsigned i = 0; i < fiber_count_; ++i)
    if (address < fibers_[i]->stack && address >= fibers_[i]->stack - page) return true;
  return false;
}

}  // namespace dice_emu

extern "C" {
void dice_set_fault_fd(int fd) {
  dice_emu::fault_fd = fd;
  dice_emu::ensure_alternate_stack();
  dice_emu::install_handlers();
}
void dice_fault(const char* kind, const char* message) { dice_emu::fault(kind, "%s", message); }
void dice_out_of_array(const char* name, long long index, size_t size) {
  dice_emu::fault("out_of_bounds", "a thread used element %lld of the local array %s, which has %zu", index, name, size);
}
void dice_assert_failed(const char* expression, const char* file, int line) {
  const char* slash = strrchr(file, '/');
  dice_emu::fault("assert", "device assertion `%s` failed at %s:%d", expression, slash ? slash + 1 : file, line);
}
}
