{# What attend.wgsl and attend_grad.wgsl share: which keys a query sees, their weights, and what dropout does to them.
`length` is an expression for the length of batch entry b. #}
// A score that no key has: smaller than any that means something, yet exp(HIDDEN - HIDDEN) is not NaN, and it is finite as
// a logarithm to base 2.
const HIDDEN: f32 = -2.0e38;

{% include "shared/group.wgsl" %}
{% include "shared/heads.wgsl" %}

// Keys that hold something.
fn valid_keys(b: u32) -> i32 {
{% if lengths %}
    return clamp({{ length }}, 0, i32(p.sk));
{% else %}
    return i32(p.sk);
{% endif %}
}

// One past the last key that query i may see.
fn end_of_keys(i: u32, valid: i32) -> i32 {
{% if causal and lengths %}
    return min(i32(i) + max(valid - i32(p.sq), 0) + 1, valid);
{% elif causal %}
    return min(i32(i) + i32(p.sk) - i32(p.sq) + 1, valid);
{% else %}
    return valid;
{% endif %}
}

// The scaled score with its mask; HIDDEN for a key that is not seen, and for a mask of -inf, whatever the key holds.
fn masked(score: f32, mask_row: u32, j: u32, end: i32) -> f32 {
    if i32(j) >= end {
        return HIDDEN;
    }
{% if mask %}
    let bias = f32(m[mask_row + j * p.m_col]);
    let x = score + bias;
    let hidden = x <= HIDDEN || bias <= HIDDEN;
{% else %}
    let x = score;
    let hidden = x <= HIDDEN;
{% endif %}
    // NaN stays: it compares false
    return select(x, HIDDEN, hidden);
}

// e^(x - top), 0 for a hidden key. NaN compares false and stays.
fn weight(x: f32, top: f32) -> f32 {
    return select(exp(x - top), 0.0, x <= HIDDEN);
}
{% if dropout %}

{% include "shared/philox.wgsl" %}

// Where the weights of query i of batch entry b begin among all that are dropped.
fn weights_of(b: u32, i: u32) -> u32 {
    return ((p.entry + b) * p.sq + i) * p.sk;
}

// What the weights at..at+3 are multiplied with.
fn kept(at: u32, stream: vec4<u32>) -> vec4<f32> {
{% if whole %}
    return factors(at / 4u, stream);
{% else %}
    // four of two groups, moved by one, then by two
    let a = factors(at / 4u, stream);
    let b = factors(at / 4u + 1u, stream);
    let one = (at & 1u) == 1u;
    let c = select(a, vec4<f32>(a.yzw, b.x), one);
    return select(c, vec4<f32>(c.zw, select(b.xy, b.yz, one)), (at & 2u) == 2u);
{% endif %}
}
{% endif %}
