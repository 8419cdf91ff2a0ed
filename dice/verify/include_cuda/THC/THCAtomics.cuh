#pragma once
#include <dice/gpu_atomics.h>
