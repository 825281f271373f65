// ex2.approx.ftz.f32: within 2 ulp of the exact value on the hardware; subnormal arguments and results are zero.
#include <cmath>

#include "state.h"

SIMT_API float simt_exp2_approx(float x) {
    constexpr float kSmallestNormal = 0x1p-126f;
    const float y = std::fabs(x) < kSmallestNormal ? 1.0f : exp2f(x);
    return y < kSmallestNormal ? 0.0f : y;
}
