// Element-wise functions of float chains, on T = {{ T }} (f32, or four at a time). NaN passes through every one:
// WGSL's min, max and clamp may drop it, so they are written as selects. NaN is told by its bits, since comparisons may
// assume that there is none, and SPIR-V's != as naga writes it is false of NaN.
{% set U = T|replace("f32", "u32") %}

fn k_nan(x: {{ T }}) -> {{ T|replace("f32", "bool") }} {
    return (bitcast<{{ U }}>(x) & {{ U }}(0x7fffffffu)) > {{ U }}(0x7f800000u);
}

fn k_relu(x: {{ T }}) -> {{ T }} {
    return select(x, {{ T }}(0.0), x < {{ T }}(0.0));
}

fn k_min(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    return select(select(b, a, a < b), a, k_nan(a));
}

fn k_max(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    return select(select(b, a, a > b), a, k_nan(a));
}

// Taylor series below 0.25 (next term 8e-9 relative), else 1 - 2 / (e^2|x| + 1), which cannot overflow once clamped.
fn k_tanh(x: {{ T }}) -> {{ T }} {
    let s = x * x;
    let near = x * (1.0 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488))));
    let a = abs(x);
    let c = select(a, {{ T }}(15.0), a > {{ T }}(15.0));
    let far = sign(x) * (1.0 - 2.0 / (exp(2.0 * c) + 1.0));
    return select(select(far, near, a < {{ T }}(0.25)), x, k_nan(x));
}

fn k_sigmoid(x: {{ T }}) -> {{ T }} {
    // e^-|x| never overflows
    let e = exp(-abs(x));
    let r = 1.0 / (1.0 + e);
    return select(r, e * r, x < {{ T }}(0.0));
}

fn k_silu(x: {{ T }}) -> {{ T }} {
    return x * k_sigmoid(x);
}

// Complementary error function for z >= 0, relative error 1.2e-7 (Chebyshev fit of Numerical Recipes, 6.2).
fn k_erfc(z: {{ T }}) -> {{ T }} {
    let t = 1.0 / (1.0 + 0.5 * z);
    let q = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * (-0.18628806
        + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))))));
    return t * exp(-z * z + q);
}

// Small where it is small: no difference of numbers near 1.
fn k_normal_cdf(x: {{ T }}) -> {{ T }} {
    let tail = 0.5 * k_erfc(abs(x) * 0.70710678);
    return select(1.0 - tail, tail, x < {{ T }}(0.0));
}

fn k_gelu_erf(x: {{ T }}) -> {{ T }} {
    return x * k_normal_cdf(x);
}

// x/2 (1 + tanh u) = x sigmoid(2u)
fn k_gelu_tanh(x: {{ T }}) -> {{ T }} {
    let u = 0.79788456 * (x + 0.044715 * x * x * x);
    return x * k_sigmoid(2.0 * u);
}

// A finite negative base has a power only for an integer exponent; (a - a) / (a - a) is NaN made at run time. Even of NaN
// the power 0 is 1, and every power of 1 is 1.
fn k_pow(a: {{ T }}, b: {{ T }}) -> {{ T }} {
    // not pow() of a negative power, which drivers make 0 of 0
    let raised = select(pow(abs(a), abs(b)), {{ T }}(1.0), abs(a) == {{ T }}(1.0));
    let magnitude = select(raised, 1.0 / raised, b < {{ T }}(0.0));
    let odd = abs(b - 2.0 * trunc(b * 0.5)) == {{ T }}(1.0);
    let whole = (b == trunc(b)) | (abs(a) > {{ T }}(3.4028234e38));
    let nan = (a - a) / (a - a);
    let negative = select(nan, select(magnitude, -magnitude, odd), whole);
    let one = (b == {{ T }}(0.0)) | (a == {{ T }}(1.0));
    let power = select(magnitude, negative, a < {{ T }}(0.0));
    return select(select(power, a + b, k_nan(a) | k_nan(b)), {{ T }}(1.0), one);
}
