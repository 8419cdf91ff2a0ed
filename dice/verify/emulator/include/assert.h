// A device assertion ends the run with a message that names the kernel. Like the C library's header, this one may be
// included again after NDEBUG has changed.
#undef assert
#ifdef NDEBUG
#define assert(condition) (static_cast<void>(0))
#else
extern "C" [[noreturn]] void dice_assert_failed(const char* expression, const char* file, int line);
#define assert(condition) ((condition) ? static_cast<void>(0) : dice_assert_failed(#condition, __FILE__, __LINE__))
#endif
