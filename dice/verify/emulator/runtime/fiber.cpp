// Stacks for kernel threads and the switch between them.
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

#if defined(__x86_64__) || defined(__aarch64__)
const bool dice_emu::kStacksCanBeCopied = true;
#else
const bool dice_emu::kStacksCanBeCopied = false;  // a ucontext holds addresses of its own
#endif

#if defined(__x86_64__)
asm(R"(
.text
.globl dice_switch_stack
.hidden dice_switch_stack
.type dice_switch_stack,@function
.p2align 4
dice_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size dice_switch_stack,.-dice_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl dice_switch_stack
.hidden dice_switch_stack
.type dice_switch_stack,%function
.p2align 4
dice_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size dice_switch_stack,.-dice_switch_stack
)");
#else
#include <ucontext.h>
#include <vector>
// Elsewhere a stack pointer is the address of a ucontext: slower, since each switch saves the signal mask.
extern "C" void dice_switch_stack(void** save, void* load) {
  static thread_local std::vector<ucontext_t*> unused;
  ucontext_t* self;
  if (unused.empty()) {
    self = new ucontext_t;
  } else {
    self = unused.back();
    unused.pop_back();
  }
  *save = self;
  swapcontext(self, static_cast<ucontext_t*>(load));
  unused.push_back(self);
}
#endif

namespace dice_emu {

static void start() { tls_worker->fiber_main(); }

// The first switch into a fiber must find what dice_switch_stack pops, then "return" into start().
static void* first_frame(char* top, char* stack) {
#if defined(__x86_64__)
  auto** frame = reinterpret_cast<void**>(top);
  *--frame = nullptr;  // keeps the stack 16-byte aligned at start(), as after a call
  *--frame = reinterpret_cast<void*>(start);
  for (int i = 0; i < 6; ++i) *--frame = nullptr;
  (void)stack;
  return frame;
#elif defined(__aarch64__)
  auto** frame = reinterpret_cast<void**>(top - 160);
  for (int i = 0; i < 20; ++i) frame[i] = nullptr;
  frame[11] = reinterpret_cast<void*>(start);  // x30, the link register
  (void)stack;
  return frame;
#else
  auto* context = new ucontext_t;
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = static_cast<size_t>(top - stack);
  context->uc_link = nullptr;
  makecontext(context, start, 0);
  return context;
#endif
}

Fiber* new_fiber(unsigned number) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapping = mmap(nullptr, kStackBytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) fault("unsupported", "the machine has no memory left for the stacks of this block's threads");
  mprotect(mapping, page, PROT_NONE);
  auto* fiber = new Fiber{};
  fiber->stack = static_cast<char*>(mapping) + page;
  fiber->number = number;
  reset_fiber(fiber);
  return fiber;
}

void reset_fiber(Fiber* fiber) {
  // Equal offsets would put the hot frames of all fibers into the same cache sets; stagger them.
  const size_t stagger = (fiber->number * 5 % 61) * 64;
  fiber->stack_pointer = first_frame(stack_end(fiber) - stagger, fiber->stack);
}

char* stack_end(const Fiber* fiber) { return fiber->stack + kStackBytes; }

}  // namespace dice_emu
