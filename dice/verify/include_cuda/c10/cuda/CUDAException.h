#pragma once
#include <dice/cuda_check.h>
