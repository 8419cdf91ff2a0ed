// c10::Error and the TORCH_CHECK family. A failed check becomes a Python exception with its message.
#pragma once
#include <dice/base.h>

namespace c10 {

class Error : public std::exception {
 public:
  explicit Error(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const char* what_without_backtrace() const noexcept { return message_.c_str(); }
  const std::string& msg() const { return message_; }

 private:
  std::string message_;
};
class IndexError : public Error { using Error::Error; };
class ValueError : public Error { using Error::Error; };
class TypeError : public Error { using Error::Error; };
class NotImplementedError : public Error { using Error::Error; };
class OutOfMemoryError : public Error { using Error::Error; };
class LinAlgError : public Error { using Error::Error; };

}  // namespace c10

namespace dice {

// Text of one value inside a check's message. Types that only have operator<< go through a string stream, which is
// named as a dependent type so that <sstream> is needed only by sources that print such a value.
inline void write_text(std::string& out, const char* text) { out += text; }
inline void write_text(std::string& out, const std::string& text) { out += text; }
inline void write_text(std::string& out, std::string_view text) { out += text; }
inline void write_text(std::string& out, char value) { out += value; }
inline void write_text(std::string& out, bool value) { out += value ? "1" : "0"; }

template <class Value>
auto write_text(std::string& out, const Value& value) -> std::enable_if_t<std::is_integral_v<Value>> {
  out += std::to_string(value);
}
template <class Value>
auto write_text(std::string& out, const Value& value) -> std::enable_if_t<std::is_floating_point_v<Value>> {
  char buffer[40];
  std::snprintf(buffer, sizeof buffer, "%.6g", static_cast<double>(value));
  out += buffer;
}
template <class Value>
auto write_text(std::string& out, const Value& value) -> std::enable_if_t<std::is_enum_v<Value>> {
  out += enum_text(value);
}
template <class Value>
auto write_text(std::string& out, const Value& value) -> decltype(value.write_to(out)) {
  value.write_to(out);
}
template <class Item>
void write_text(std::string& out, const std::vector<Item>& items) {
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i != 0) out += ", ";
    write_text(out, items[i]);
  }
  out += ']';
}

template <class... Values>
std::string text(const Values&... values) {
  std::string out;
  (write_text(out, values), ...);
  return out;
}

template <class Failure>
[[noreturn]] inline void fail(const std::string& message) {
  throw Failure(message);
}

// The message of a check: the caller's words, or a default sentence that quotes the condition.
inline std::string check_text(const char* condition) {
  return std::string("Expected ") + condition +
         " to be true, but got false.  (Could this error message be improved?  If so, please report an "
         "enhancement request to PyTorch.)";
}
template <class... Values>
std::string check_text(const char*, const Values&... values) {
  return text(values...);
}
inline void warn(const std::string& message) { std::fprintf(stderr, "Warning: %s\n", message.c_str()); }

}  // namespace dice

namespace c10 {
template <class... Values>
std::string str(const Values&... values) {
  return ::dice::text(values...);
}
}  // namespace c10

#define DICE_CHECK_WITH(failure, condition, ...)                                                 \
  if (C10_UNLIKELY(!(condition))) {                                                              \
    ::dice::fail<::c10::failure>(::dice::check_text(#condition, ##__VA_ARGS__));                 \
  }
#define TORCH_CHECK(cond, ...) DICE_CHECK_WITH(Error, cond, ##__VA_ARGS__)
#define TORCH_CHECK_INDEX(cond, ...) DICE_CHECK_WITH(IndexError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_VALUE(cond, ...) DICE_CHECK_WITH(ValueError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_TYPE(cond, ...) DICE_CHECK_WITH(TypeError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_NOT_IMPLEMENTED(cond, ...) DICE_CHECK_WITH(NotImplementedError, cond, ##__VA_ARGS__)
#define TORCH_CHECK_WITH(error_t, cond, ...) DICE_CHECK_WITH(error_t, cond, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT(cond, ...) DICE_CHECK_WITH(Error, cond, ##__VA_ARGS__)
#define TORCH_INTERNAL_ASSERT_DEBUG_ONLY(cond, ...) ((void)0)
#define AT_ASSERT(cond, ...) TORCH_INTERNAL_ASSERT(cond, ##__VA_ARGS__)
#define AT_ASSERTM(cond, ...) TORCH_INTERNAL_ASSERT(cond, ##__VA_ARGS__)
#define AT_ERROR(...) ::dice::fail<::c10::Error>(::dice::text(__VA_ARGS__))
#define C10_THROW_ERROR(error_t, msg) ::dice::fail<::c10::error_t>(msg)
#define TORCH_WARN(...) ::dice::warn(::dice::text(__VA_ARGS__))
#define TORCH_WARN_ONCE(...)                                   \
  do {                                                         \
    static bool dice_warned = false;                           \
    if (!dice_warned) ::dice::warn(::dice::text(__VA_ARGS__)); \
    dice_warned = true;                                        \
  } while (0)
#define AT_WARN(...) TORCH_WARN(__VA_ARGS__)

#define DICE_CHECK_COMPARE(left, op, right) \
  TORCH_CHECK((left)op(right), "Check failed: " #left " " #op " " #right " (", left, " vs. ", right, "). ")
#define TORCH_CHECK_EQ(left, right) DICE_CHECK_COMPARE(left, ==, right)
#define TORCH_CHECK_NE(left, right) DICE_CHECK_COMPARE(left, !=, right)
#define TORCH_CHECK_LT(left, right) DICE_CHECK_COMPARE(left, <, right)
#define TORCH_CHECK_LE(left, right) DICE_CHECK_COMPARE(left, <=, right)
#define TORCH_CHECK_GT(left, right) DICE_CHECK_COMPARE(left, >, right)
#define TORCH_CHECK_GE(left, right) DICE_CHECK_COMPARE(left, >=, right)
#define TORCH_CHECK_NOTNULL(value) \
  ([](auto&& checked) -> decltype(auto) { TORCH_CHECK(checked, #value " must not be null"); return checked; }(value))
