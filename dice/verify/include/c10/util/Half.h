#pragma once
#include <dice/half.h>
