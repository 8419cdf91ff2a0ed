#pragma once
#include <dice/accessor.h>
