{% from "shared/attend_place.wgsl" import addresses %}
{% include "shared/attend_grad.wgsl" %}

{% if keys %}
// dv = (w · z)ᵀ dout and dk = scale · gᵀ q, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% else %}
// dq = scale · g k, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% endif %}
// multiplies them with, g = w · (z · (dout vᵀ) - delta) the gradient of the scores and delta the sums of dout · out:
// straight from the buffers, for CPUs that act as GPUs, and for limits too small for tiles.
//
// An invocation has {{ own }} neighbouring {{ "keys" if keys else "queries" }} of one head with their results and walks over the {{ "queries" if keys else "keys" }}, whose rows are
// the same for all {{ threads }} invocations of a workgroup. Sums run over {{ "queries" if keys else "keys" }} in order, in f32.

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
{{ addresses(reads) }}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{% for r in range(own) %}
    // rows past the end repeat the last one and are not stored
    let row{{ r }} = min(first + {{ r }}u, {{ own_rows }} - 1u);
{% if not keys %}
    let query{{ r }} = query_of(b, h, first + {{ r }}u, valid);
{% if dropout %}
    var z{{ r }} = vec4<f32>(0.0);
{% endif %}
{% endif %}
{% for c in range(columns) %}
    let a{{ r }}_{{ c }} = read_{{ ours[0] }}(at_{{ ours[0] }} + row{{ r }} * p.{{ ours[0] }}_row, {{ 4 * c }}u);
    let b{{ r }}_{{ c }} = read_{{ ours[1] }}(at_{{ ours[1] }} + row{{ r }} * p.{{ ours[1] }}_row, {{ 4 * c }}u);
{% for sum in writes %}
    var {{ sum }}{{ r }}_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% endfor %}
{% if keys %}
    for (var t = first_query(block, valid); t < p.sq; t += 1u) {
        let query = query_of(b, h, t, valid);
{% if dropout %}
        let at_w = query.at_w + first;
{% if own == 1 %}
        let z = vec4<f32>(factors(at_w / 4u, stream)[at_w & 3u]);
{% elif own == 2 and whole %}
        let four = factors(at_w / 4u, stream);
        let z = select(four.xy, four.zw, (at_w & 2u) == 2u);
{% else %}
        let z = kept(at_w, stream);
{% endif %}
{% endif %}
{% else %}
    let end = u32(max(end_of_keys(min(block + {{ threads * own - 1 }}u, p.sq - 1u), valid), 0));
    for (var t = 0u; t < end; t += 1u) {
{% endif %}
{% for c in range(columns) %}
        let u{{ c }} = read_{{ theirs[0] }}(at_{{ theirs[0] }} + t * p.{{ theirs[0] }}_row, {{ 4 * c }}u);
        let y{{ c }} = read_{{ theirs[1] }}(at_{{ theirs[1] }} + t * p.{{ theirs[1] }}_row, {{ 4 * c }}u);
{% endfor %}
{% for r in range(own) %}
{% set query = "query" if keys else "query" ~ r %}
{% set j = "first + " ~ r ~ "u" if keys else "t" %}
{% if dropout and not keys %}
        // a group of four lasts for four keys
        let at_w{{ r }} = query{{ r }}.at_w + t;
        if (at_w{{ r }} & 3u) == 0u || t == 0u {
            z{{ r }} = factors(at_w{{ r }} / 4u, stream);
        }
        let kept{{ r }} = z{{ r }}[at_w{{ r }} & 3u];
{% endif %}
        var s{{ r }} = dot(a{{ r }}_0, u0);
        var dw{{ r }} = dot(b{{ r }}_0, y0);
{% for c in range(1, columns) %}
        s{{ r }} += dot(a{{ r }}_{{ c }}, u{{ c }});
        dw{{ r }} += dot(b{{ r }}_{{ c }}, y{{ c }});
{% endfor %}
        let w{{ r }} = pair_weight(s{{ r }}, {{ query }}, {{ j }});
{% if dropout %}
{% set z = "kept" ~ r if not keys else "z." ~ "xyzw"[r] %}
        dw{{ r }} *= {{ z }};
{% endif %}
        let g{{ r }} = score_grad(w{{ r }}, dw{{ r }}, {{ query }}.delta);
{% if keys %}
        let x{{ r }} = w{{ r }}{{ " * " ~ z if dropout }};
{% endif %}
{% for c in range(columns) %}
        {{ writes[0] }}{{ r }}_{{ c }} += seen(g{{ r }}, u{{ c }});
{% if keys %}
        dv{{ r }}_{{ c }} += seen(x{{ r }}, y{{ c }});
{% endif %}
{% endfor %}
{% endfor %}
    }
{% for r in range(own) %}
    if first + {{ r }}u < {{ own_rows }} {
        let at_o = p.o_offset + b * p.o_batch + row{{ r }} * p.o_row + h * p.o_head;
{% if keys %}
        let at_dv = p.dv_offset + b * p.dv_batch + row{{ r }} * p.dv_row + h * p.dv_head;
{% endif %}
{% for c in range(columns) %}
        write_{{ writes[0] }}(at_o, {{ 4 * c }}u, {{ writes[0] }}{{ r }}_{{ c }} * p.scale);
{% if keys %}
        write_dv(at_dv, {{ 4 * c }}u, dv{{ r }}_{{ c }});
{% endif %}
{% endfor %}
    }
{% endfor %}
}

// 0 for a weight of 0, whatever the row holds.
fn seen(w: f32, x: vec4<f32>) -> vec4<f32> {
    return select(w * x, vec4<f32>(0.0), w == 0.0);
}
