{% include "shared/attend.wgsl" %}

// out = softmax(q kᵀ · scale + mask) v, straight from the buffers: for CPUs that act as GPUs, and for limits too small
// for tiles.
//
// An invocation has one query of one head and walks over its keys, four at a time, with a running maximum (Milakov
// and Gimelshein, arXiv 1805.02867). Keys and values are the same for all {{ threads }} invocations of a workgroup. Sums run over
// keys in order, in f32.
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    if group >= p.groups {
        return;
    }
    let bh = group / p.blocks;
    let b = bh / p.heads;
    let h = bh % p.heads;
    let first = group % p.blocks * {{ threads }}u;
    // queries past the end repeat the last one and are not stored
    let i = min(first + lane, p.sq - 1u);
    let valid = valid_keys(b);
    let end = end_of_keys(i, valid);
    let last = end_of_keys(min(first + {{ threads - 1 }}u, p.sq - 1u), valid);
    let at_q = p.q_offset + b * p.q_batch + i * p.q_row + h * p.q_head;
    let at_k = p.k_offset + b * p.k_batch + h * p.k_head;
    let at_v = p.v_offset + b * p.v_batch + h * p.v_head;
    let at_m = {% if mask %}p.m_offset + b * p.m_batch + i * p.m_row + h * p.m_head{% else %}0u{% endif %};
{% for c in range(columns) %}
    let q{{ c }} = read_q(at_q, {{ 4 * c }}u) * p.scale;
    var o{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% if dropout %}
    let stream = stream_of(h);
    let at_w = weights_of(b, i);
{% endif %}
    var top = HIDDEN;
    var sum = 0.0;
    for (var j = 0; j < last; j += 4) {
{% for r in range(4) %}
        // keys past the end repeat the last one and are hidden; their values are not touched
        let j{{ r }} = u32(min(j + {{ r }}, last - 1));
        let k{{ r }} = at_k + j{{ r }} * p.k_row;
        var s{{ r }} = dot(q0, read_k(k{{ r }}, 0u));
{% for c in range(1, columns) %}
        s{{ r }} += dot(q{{ c }}, read_k(k{{ r }}, {{ 4 * c }}u));
{% endfor %}
        s{{ r }} = masked(s{{ r }}, at_m, u32(j + {{ r }}), end);
{% endfor %}
        let new_top = max(top, max(max(s0, s1), max(s2, s3)));
        let shrink = exp(top - new_top);
        top = new_top;
{% for r in range(4) %}
        let w{{ r }} = weight(s{{ r }}, top);
        let v{{ r }} = at_v + j{{ r }} * p.v_row;
{% endfor %}
        sum = sum * shrink + ((w0 + w1) + (w2 + w3));
{% if dropout %}
        let z = vec4<f32>(w0, w1, w2, w3) * kept(at_w + u32(j), stream);
{% endif %}
{% for c in range(columns) %}
        o{{ c }} *= shrink;
{% for r in range(4) %}
        o{{ c }} += seen({{ "z." ~ "xyzw"[r] if dropout else "w" ~ r }}, read_v(v{{ r }}, {{ 4 * c }}u));
{% endfor %}
{% endfor %}
    }
    if first + lane < p.sq {
        let at_o = p.o_offset + b * p.o_batch + i * p.o_row + h * p.o_head;
        let r = select(1.0 / sum, 0.0, sum == 0.0);
{% for c in range(columns) %}
        write_out(at_o, {{ 4 * c }}u, o{{ c }} * r);
{% endfor %}
{% if lse %}
        lse[p.lse_offset + bh * p.sq + i] = log_sum_exp(top, sum);
{% endif %}
    }
}

// 0 for a weight of 0, whatever the value holds.
fn seen(w: f32, x: vec4<f32>) -> vec4<f32> {
    return select(w * x, vec4<f32>(0.0), w == 0.0);
}
