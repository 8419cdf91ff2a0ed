#pragma once
#include <dice/types.h>
