// CUDA-on-CPU: what nvcc includes before the first line of a .cu file.
#pragma once
#if defined(DICE_QUICK_HEADERS)
#include <dice/few_maths.h>
#endif
#include <assert.h>
#include <limits.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "dice_emu/core.h"
#include "dice_emu/math.h"
#include "dice_emu/intrinsics.h"
#include "dice_emu/warp.h"
#include "dice_emu/ptx.h"
#include "dice_emu/atomics.h"
#include "dice_emu/host_api.h"
