// Before the first <cmath>: Bessel functions and the like, which it brings since C++17, cost g++ as much in every build as
// the rest of the standard library. They are left out of quick builds: a source that names one is compiled again.
#pragma once
#if defined(DICE_QUICK_HEADERS)
#include <cstddef>
#undef _GLIBCXX_USE_STD_SPEC_FUNCS
#endif
