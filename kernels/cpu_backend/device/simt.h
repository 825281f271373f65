// Forced include of every kernel translation unit on the CPU: makes CUDA C++ compile with g++ or clang++ and run on
// the fibers of the runtime. Standard headers come before the CUDA ones because the latter define keywords as macros.
#pragma once
#define SIMT_CPU 1

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "abi.h"

#include "keywords.h"

#include "barriers.h"
#include "warp.h"
#include "maths.h"
#include "half_maths.h"
#include "atomics.h"
#include "thunk.h"
