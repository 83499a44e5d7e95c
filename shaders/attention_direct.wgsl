{% include "shared/attend.wgsl" %}

// out = softmax(q kᵀ · scale + mask) v, straight from the buffers: for CPUs that act as GPUs, and for limits too small
// for tiles.
//
// An invocation has {{ own }} neighbouring {{ "query" if own == 1 else "queries" }} of one head and walks over the keys, four at a time, with a running maximum
// (Milakov and Gimelshein, arXiv 1805.02867). Keys and values are the same for all {{ threads }} invocations of a workgroup. Sums
// run over keys in order, in f32.
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}

{% from "shared/attend_place.wgsl" import addresses %}
{% from "shared/mask.wgsl" import mask_row %}
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
    let block = group % p.blocks * {{ threads * own }}u;
    let first = block + lane * {{ own }}u;
    let valid = valid_keys(b);
    let last = end_of_keys(min(block + {{ threads * own - 1 }}u, p.sq - 1u), valid);
{{ addresses(reads) }}
{% if dropout %}
    let stream = stream_of(h);
{% endif %}
{% for r in range(own) %}
    // queries past the end repeat the last one and are not stored
    let i{{ r }} = min(first + {{ r }}u, p.sq - 1u);
    let end{{ r }} = end_of_keys(i{{ r }}, valid);
    let at_m{{ r }} = {{ mask_row("i" ~ r, mask) }};
    var top{{ r }} = HIDDEN;
    var sum{{ r }} = 0.0;
{% for c in range(columns) %}
    let q{{ r }}_{{ c }} = read_q(at_q + i{{ r }} * p.q_row, {{ 4 * c }}u) * p.scale;
    var o{{ r }}_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
    for (var j = 0; j < last; j += 4) {
{% for r in range(own) %}
        var s{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var t = 0; t < 4; t += 1) {
            // keys past the end repeat the last one and are hidden
            let at = at_k + u32(min(j + t, last - 1)) * p.k_row;
{% for c in range(columns) %}
            let k{{ c }} = read_k(at, {{ 4 * c }}u);
{% endfor %}
{% for r in range(own) %}
            var x{{ r }} = dot(q{{ r }}_0, k0);
{% for c in range(1, columns) %}
            x{{ r }} += dot(q{{ r }}_{{ c }}, k{{ c }});
{% endfor %}
            s{{ r }}[t] = masked(x{{ r }}, at_m{{ r }}, u32(j + t), end{{ r }});
{% endfor %}
        }
{% for r in range(own) %}
        let new_top{{ r }} = max(top{{ r }}, max(max(s{{ r }}.x, s{{ r }}.y), max(s{{ r }}.z, s{{ r }}.w)));
        let shrink{{ r }} = exp(top{{ r }} - new_top{{ r }});
        top{{ r }} = new_top{{ r }};
{% for c in range(columns) %}
        o{{ r }}_{{ c }} *= shrink{{ r }};
{% endfor %}
        var w{{ r }} = vec4<f32>(weight(s{{ r }}.x, top{{ r }}), weight(s{{ r }}.y, top{{ r }}), weight(s{{ r }}.z, top{{ r }}), weight(s{{ r }}.w, top{{ r }}));
        sum{{ r }} = sum{{ r }} * shrink{{ r }} + ((w{{ r }}.x + w{{ r }}.y) + (w{{ r }}.z + w{{ r }}.w));
{% if dropout %}
        w{{ r }} *= kept(weights_of(b, i{{ r }}) + u32(j), stream);
{% endif %}
{% endfor %}
        for (var t = 0; t < min(4, last - j); t += 1) {
            let at = at_v + u32(j + t) * p.v_row;
{% for c in range(columns) %}
            let v{{ c }} = read_v(at, {{ 4 * c }}u);
{% for r in range(own) %}
            o{{ r }}_{{ c }} += seen(w{{ r }}[t], v{{ c }});
{% endfor %}
{% endfor %}
        }
    }
{% for r in range(own) %}
    if first + {{ r }}u < p.sq {
        let at_o = p.o_offset + b * p.o_batch + i{{ r }} * p.o_row + h * p.o_head;
        let scale = select(1.0 / sum{{ r }}, 0.0, sum{{ r }} == 0.0);
{% for c in range(columns) %}
        write_out(at_o, {{ 4 * c }}u, o{{ r }}_{{ c }} * scale);
{% endfor %}
{% if lse %}
        lse[p.lse_offset + bh * p.sq + i{{ r }}] = log_sum_exp(top{{ r }}, sum{{ r }});
{% endif %}
    }
{% endfor %}
}

// 0 for a weight of 0, whatever the value holds.
fn seen(w: f32, x: vec4<f32>) -> vec4<f32> {
    return select(w * x, vec4<f32>(0.0), w == 0.0);
}
