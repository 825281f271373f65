"""Honest kernels that an incomplete bound once rejected, each with the rounding that was missing."""

from __future__ import annotations

import numpy as np
import pytest

from verify.candidate import Call
from verify.candidates.numpy_tiled import build
from verify.case import Case
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.tolerance import derive_bounds

PINNED = {
    "delta sums the stored, rounded dP": (
        "eager",
        ("attn1:b=1,sq=1,sk=3,h=14,hkv=2,d=8,dtype=fp16,sink=1,lenk=3,layout=bhsd,recipe=subnormal,seed=98070"),
    ),
    "P is rounded before it meets dP - delta": (
        "rounded_ds",
        "attn1:b=1,sq=33,sk=65,h=2,d=80,dtype=fp16,recipe=logits:max=100.0,seed=6",
    ),
    "dS is rounded after the scale": (
        "rounded_ds",
        "attn1:b=1,sq=17,sk=100,h=6,hkv=2,d=96,dtype=fp16,recipe=subnormal,seed=131",
    ),
    "the computed dS is rounded with its error, which decides alone where dS vanishes": (
        "exp",
        (
            "attn1:b=2,sq=37,sk=37,h=2,d=7,dtype=fp16,scale=0.7,pattern=block_sparse,block=64x64,bias=alibi,dropout=0.9,"
            "layout=packed_qkv,recipe=subnormal,seed=399"
        ),
    ),
    "out is rounded after the last key tile too": (
        "round_per_tile",
        (
            "attn1:b=4,sq=6,sk=92,h=5,hkv=1,d=16,dtype=fp16,causal=1,window=61+0,bias=additive,cuq=0+6+12+18+24,"
            "cuk=0+17+17+48+140,recipe=v_constant,seed=119"
        ),
    ),
    "the sink rescales once more": (
        "fast_exp",
        (
            "attn1:b=3,sq=5,sk=50,h=15,hkv=3,d=16,dtype=fp16,causal=1,softcap=1.0,sink=1,cuq=0+5+10+15,cuk=0+50+59+77,"
            "layout=sliced,recipe=zero_queries,seed=50"
        ),
    ),
    "an exp with exp(0) != 1 errs to the same side in every rescaling": (
        "fast_exp",
        (
            "attn1:b=4,sq=6,sk=72,h=6,hkv=3,d=16,dtype=bf16,causal=1,bias=additive,sink=1,lenk=72+27+64+27,layout=bhsd,"
            "recipe=outliers:p=0.01,seed=1000003"
        ),
    ),
    "a weight of 1e-19 may come back as 1e-9": (
        "qk_prescaled",
        (
            "attn1:b=4,sq=19,sk=26,h=6,hkv=3,d=7,dtype=bf16,causal=1,window=20+0,bias=additive,biasbc=01,dropout=0.9,"
            "lenk=26+1+3+26,recipe=logits:max=10000.0,seed=536924"
        ),
    ),
    "every head of a group is rounded before the sum": (
        "round_per_tile",
        (
            "attn1:b=4,sq=3,sk=63,h=15,hkv=3,d=65,dtype=bf16,causal=1,bias=alibi,softcap=1.0,lenk=3+1+63+50,page=1,"
            "recipe=v_zero_channel,seed=182714270"
        ),
    ),
    "the un-normalised out overflows fp16": (
        "round_per_tile",
        (
            "attn1:b=4,sq=3,sk=95,h=9,hkv=3,d=40,dtype=fp16,pattern=boolean,block=64x64,lenk=17+17+95+63,"
            "recipe=near_overflow,seed=3041"
        ),
    ),
    "equal significands of q round alike": (
        "q_prescaled",
        (
            "attn1:b=3,sq=9,sk=63,h=7,hkv=1,d=128,dtype=fp16,softcap=50.0,dropout=0.9,cuq=0+9+18+19,cuk=0+3+66+68,"
            "recipe=falling_tiles,seed=307343"
        ),
    ),
    "dropped weights are in the rounded sum": (
        "l_rounded",
        (
            "attn1:b=3,sq=5,sk=53,h=14,hkv=2,d=7,dtype=bf16,causal=1,window=16+0,dropout=0.25,layout=broadcast,"
            "recipe=v_trend,seed=2207"
        ),
    ),
    "the rounding of dS is relative to its error where dS vanishes": (
        "round_per_tile",
        (
            "attn1:b=3,sq=30,sk=65,h=2,hkv=1,d=40,dtype=bf16,window=0+inf,bias=alibi,softcap=50.0,layout=broadcast,"
            "recipe=v_constant,seed=509164927"
        ),
    ),
    "the factor of dropout magnifies underflow": (
        "round_per_tile",
        (
            "attn1:b=1,sq=31,sk=63,h=6,hkv=2,d=40,dtype=fp16,window=8+0,bias=additive,dropout=0.9,layout=bhsd,"
            "recipe=needle:position=63,seed=63"
        ),
    ),
    "a hidden key far from the others leaves the deviation of v in fp64 only": (
        "l_rounded",
        (
            "attn1:b=1,sq=2,sk=3,h=2,hkv=1,d=2,dv=1,dtype=fp16,causal=1,recipe=pinned:dout=0:k=%30.5:q=0x2~1x2"
            ":v=-0.0003054142~0.00040006638~4,seed=417"
        ),
    ),
    "a score whose rounding exceeds any exponent leaves the weight undetermined, however small it is": (
        "qk_prescaled",
        "attn1:b=1,sq=1,sk=1,h=1,d=1,dtype=bf16,scale=0.7,sink=1,recipe=low_logits:unscaled=50000.0,seed=143",
    ),
}
PINNED_WITH_DLSE = {
    "equal dS round alike, whatever their keys": (
        "rtz16",
        (
            "attn1:b=1,sq=7,sk=28,h=2,hkv=1,d=2,dv=1,dtype=fp16,scale=0.7,softcap=15.0,sink=1,"
            "recipe=pinned:dout=0:k=19.203125~0x3~19.671875~0~21.359375~0~19.796875~0~20.21875~0~21.125~0~19.9375~0"
            "~20.140625~0~19.09375~0~19.03125~19.109375~19.546875~22.828125~20.359375~22.125~19.453125~20.421875~20.375"
            "~21.984375~19.171875~20.359375~20.203125~20.28125~19.453125~19.296875~19.5625~20.765625~21.515625~21.015625"
            "~19.9375~19.828125~19.53125~20.71875~21.390625~20.375~20.03125~20.578125~18.828125~20.59375~22.03125"
            "~19.90625~18.75~18.796875~18.875:q=0:v=0,seed=90207"
        ),
    ),
    "dS below half the smallest fp16 number vanish together": (
        "rtz16",
        (
            "attn1:b=2,sq=16,sk=122,h=2,hkv=1,d=3,dtype=fp16,scale=0.7,window=160+inf,softcap=15.0,sink=1,lenk=122+122,"
            "page=64,layout=sliced,recipe=kmean,seed=90207"
        ),
    ),
    "delta contains no dlse, so its error is not that of G": (
        "qk_prescaled",
        (
            "attn1:b=1,sq=3,sk=1,h=3,hkv=1,d=6,dv=4,dtype=fp16,sink=1,recipe=pinned:dout=0x32~1x4:k=3~-3x3~3x2"
            ":q=0x12~1~-1x3~1x2~0x12~1~-1x3~1x2~0x12~1~-1x3~1x2:v=1x4,seed=781809195"
        ),
    ),
}


@pytest.mark.parametrize("cause", [*PINNED, *PINNED_WITH_DLSE])
def test_honest_kernel_is_accepted(cause: str) -> None:
    with_dlse = cause in PINNED_WITH_DLSE
    variant, text = (PINNED | PINNED_WITH_DLSE)[cause]
    case, candidate = Case.parse(text), build(variant)
    problem, arrays = case.problem, make_inputs(case).arrays
    reference = reference_outputs(problem, arrays, backward=True, with_dlse=with_dlse).outputs
    arithmetic = candidate.contract.arithmetic[problem.dtype]
    bounds = derive_bounds(problem, arrays, reference, arithmetic, backward=True, with_dlse=with_dlse)
    outputs = candidate.run(Call(problem=problem, arrays=arrays, backward=True, with_dlse=with_dlse)).outputs
    for name, bound in bounds.items():
        judged = np.isfinite(bound.total) & np.isfinite(reference[name])
        error = np.abs(outputs[name][judged].astype(np.float64) - reference[name][judged])
        assert (error <= bound.total[judged]).all(), name
