#pragma once
#include <dice/base.h>
