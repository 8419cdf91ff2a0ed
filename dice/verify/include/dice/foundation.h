// What the headers about streams and guards stand on: the shadow headers, or PyTorch's own where those are compiled.
#pragma once
#if defined(DICE_FULL_HEADERS)
#include <torch/types.h>
#else
#include <dice/types.h>
#endif
