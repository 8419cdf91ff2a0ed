#pragma once
#include <dice/math_types.h>
