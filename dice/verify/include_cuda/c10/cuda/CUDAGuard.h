#pragma once
#include <dice/cuda_guard.h>
