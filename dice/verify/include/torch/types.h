#pragma once
#include <dice/factories.h>
#include <dice/extras.h>
#include <dice/dispatch.h>
#include <dice/math_types.h>
