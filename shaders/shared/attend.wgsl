// What attention.wgsl and attention_direct.wgsl share: parameters, bindings and which key a query sees. Strides and
// offsets of q, k, v and out count array elements, which are vec4s where the head size allows it.
{% if f16 %}
enable f16;
{% endif %}

struct Params {
    groups: u32, // workgroups that have work
    heads: u32,
    sq: u32, // queries
    sk: u32, // keys
    d: u32, // head size
    blocks: u32, // workgroups a head
    scale: f32,
    zero: u32, // 0, unknown to the compiler: infinity is made with it
    q_offset: u32, q_batch: u32, q_row: u32, q_head: u32,
    k_offset: u32, k_batch: u32, k_row: u32, k_head: u32,
    v_offset: u32, v_batch: u32, v_row: u32, v_head: u32,
    o_offset: u32, o_batch: u32, o_row: u32, o_head: u32,
{% if mask %}
    m_offset: u32, m_batch: u32, m_row: u32, m_head: u32, m_col: u32,
{% endif %}
{% if lengths %}
    lengths_offset: u32,
{% endif %}
{% if lse %}
    lse_offset: u32,
{% endif %}
}

{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> q: array<{{ storage }}>;
@group(0) @binding(2) var<storage, read> k: array<{{ storage }}>;
@group(0) @binding(3) var<storage, read> v: array<{{ storage }}>;
{% if mask %}
@group(0) @binding(4) var<storage, read> m: array<{{ scalar }}>;
{% endif %}
{% if lengths %}
@group(0) @binding({{ 5 if mask else 4 }}) var<storage, read> lengths: array<i32>;
{% endif %}
@group(0) @binding({{ out_binding }}) var<storage, read_write> out: array<{{ storage }}>;
{% if lse %}
@group(0) @binding({{ out_binding + 1 }}) var<storage, read_write> lse: array<f32>;
{% endif %}

// A score that no key has: smaller than any finite product, yet exp(HIDDEN - HIDDEN) is not NaN.
const HIDDEN: f32 = -3.0e38;

{% include "shared/group.wgsl" %}
{% for name in ["q", "k", "v"] %}

// Elements c..c+3 of a row that starts at `at`; those past the head size are 0.
fn read_{{ name }}(at: u32, c: u32) -> vec4<f32> {
{% if vec %}
    return vec4<f32>({{ name }}[at + c / 4u]);
{% else %}
    var x = vec4<f32>(0.0);
    if c < p.d { x.x = f32({{ name }}[at + c]); }
    if c + 1u < p.d { x.y = f32({{ name }}[at + c + 1u]); }
    if c + 2u < p.d { x.z = f32({{ name }}[at + c + 2u]); }
    if c + 3u < p.d { x.w = f32({{ name }}[at + c + 3u]); }
    return x;
{% endif %}
}
{% endfor %}

fn write_out(at: u32, c: u32, x: vec4<f32>) {
{% if vec %}
    out[at + c / 4u] = vec4<{{ scalar }}>(x);
{% else %}
    if c < p.d { out[at + c] = {{ scalar }}(x.x); }
    if c + 1u < p.d { out[at + c + 1u] = {{ scalar }}(x.y); }
    if c + 2u < p.d { out[at + c + 2u] = {{ scalar }}(x.z); }
    if c + 3u < p.d { out[at + c + 3u] = {{ scalar }}(x.w); }
{% endif %}
}

// Keys that hold something.
fn valid_keys(b: u32) -> i32 {
{% if lengths %}
    return clamp(lengths[p.lengths_offset + b], 0, i32(p.sk));
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
{% if lse %}

fn log_sum_exp(top: f32, sum: f32) -> f32 {
    return select(top + log(sum), bitcast<f32>(0xff800000u | p.zero), sum == 0.0);
}
{% endif %}
