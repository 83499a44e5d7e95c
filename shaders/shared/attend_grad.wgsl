// What attention_grad.wgsl, attention_grad_direct.wgsl and attention_grad_units.wgsl share: parameters, bindings, the weight
// of a pair and its gradient. Strides and offsets of q, k, v, dout and the results count array elements, which are vec4s
// where the head size allows it.
{% from "shared/mask.wgsl" import mask_row %}
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
    q_offset: u32, q_batch: u32, q_row: u32, q_head: u32,
    k_offset: u32, k_batch: u32, k_row: u32, k_head: u32,
    v_offset: u32, v_batch: u32, v_row: u32, v_head: u32,
    dout_offset: u32, dout_batch: u32, dout_row: u32, dout_head: u32,
    o_offset: u32, o_batch: u32, o_row: u32, o_head: u32, // of {{ writes[0] }}
{% if keys %}
    dv_offset: u32, dv_batch: u32, dv_row: u32, dv_head: u32,
{% endif %}
{% if mask %}
    m_offset: u32, m_batch: u32, m_row: u32, m_head: u32, m_col: u32,
{% endif %}
    stats_offset: u32,
    stats_batch: u32, // what attention_stats.wgsl made of a batch entry
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
@group(0) @binding({{ out_binding - 2 }}) var<storage, read> dout: array<{{ "vec2<u32>" if words else storage }}>;
@group(0) @binding({{ out_binding - 1 }}) var<storage, read> stats: array<vec2<u32>>;
{% for name in bound %}
@group(0) @binding({{ out_binding + loop.index0 }}) var<storage, read_write> {{ name }}: array<{{ storage }}>;
{% endfor %}

{% include "shared/keys.wgsl" %}
{% if keys and bound|length == 1 %}

// dv lies in dk's tensor.
fn write_dv(at: u32, c: u32, x: vec4<f32>) {
    write_dk(at, c, x);
}
{% endif %}
{% if dropout %}

// The random numbers of head h.
fn stream_of(b: u32, h: u32) -> vec4<u32> {
    let at = p.stats_offset + b * p.stats_batch;
    return vec4<u32>(stats[at + 1u], stats[at].y, p.site + h);
}
{% endif %}

// (log-sum-exp, sum of dout · out) of a query; past the end those of the last one.
fn pair_of(b: u32, h: u32, i: u32) -> vec2<f32> {
    return bitcast<vec2<f32>>(stats[p.stats_offset + b * p.stats_batch + 2u + h * p.sq + min(i, p.sq - 1u)]);
}

// What the gradient needs of a query.
struct Query {
    end: i32, // one past the last key that it sees
    lse: f32,
    delta: f32, // the sum of dout · out
    at_m: u32, // its row of the mask
    at_w: u32, // its row among all weights that are dropped
}

// One past the end sees no key.
fn query_of(b: u32, h: u32, row: u32, valid: i32) -> Query {
    let i = min(row, p.sq - 1u);
    let end = select(0, end_of_keys(i, valid), row < p.sq);
    let pair = pair_of(b, h, i);
    let at_m = {{ mask_row("i", mask) }};
    let at_w = {{ "weights_of(b, i)" if dropout else "0u" }};
    return Query(end, pair.x, pair.y, at_m, at_w);
}

// The weight of key j from its product with a query.
fn pair_weight(product: f32, query: Query, j: u32) -> f32 {
    return weight(masked(product * p.scale, query.at_m, j, query.end), query.lse);
}

// The gradient of a scaled score from that of its weight; 0 for a weight of 0, whatever the others hold.
fn score_grad(w: f32, dw: f32, delta: f32) -> f32 {
    return select(w * (dw - delta), 0.0, w == 0.0);
}
{% if keys %}

// The first query that sees key j or one behind it.
fn first_query(j: u32, valid: i32) -> u32 {
    if i32(j) >= valid {
        return p.sq;
    }
{% if causal and lengths %}
    return u32(max(i32(j) - max(valid - i32(p.sq), 0), 0));
{% elif causal %}
    return u32(max(i32(j) - i32(p.sk) + i32(p.sq), 0));
{% else %}
    return 0u;
{% endif %}
}
{% endif %}
