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
{% if dropout %}
    entry: u32, // batch entry of the whole that the first is
    site: u32, // of head 0
    threshold: u32, // random words below this drop
    keep: f32,
{% endif %}
}

{% include "shared/params.wgsl" %}
@group(0) @binding(1) var<storage, read> q: array<{{ "vec2<u32>" if words else storage }}>;
@group(0) @binding(2) var<storage, read> k: array<{{ "vec2<u32>" if words else storage }}>;
@group(0) @binding(3) var<storage, read> v: array<{{ "vec2<u32>" if words else storage }}>;
{% if mask %}
@group(0) @binding(4) var<storage, read> m: array<{{ scalar }}>;
{% endif %}
{% if lengths %}
@group(0) @binding({{ 5 if mask else 4 }}) var<storage, read> lengths: array<i32>;
{% endif %}
{% if dropout %}
@group(0) @binding({{ out_binding - 1 }}) var<storage, read> counter: array<u32>;
{% endif %}
@group(0) @binding({{ out_binding }}) var<storage, read_write> out: array<{{ storage }}>;
{% if lse %}
@group(0) @binding({{ out_binding + 1 }}) var<storage, read_write> lse: array<f32>;
{% endif %}

{% include "shared/keys.wgsl" %}
{% if lse %}

fn log_sum_exp(top: f32, sum: f32) -> f32 {
    return select(top + log(sum), bitcast<f32>(0xff800000u | p.zero), sum == 0.0);
}
{% endif %}
{% if dropout %}

// The random numbers of head h.
fn stream_of(h: u32) -> vec4<u32> {
    return vec4<u32>(counter[0], counter[1], counter[2], p.site + h);
}
{% endif %}
