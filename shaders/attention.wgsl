{% include "shared/attend.wgsl" %}

// out = softmax(q kᵀ · scale + mask) v, without the scores in memory (Dao et al., arXiv 2205.14135; running maximum
// by Milakov and Gimelshein, arXiv 1805.02867).
//
// A workgroup of {{ threads }} has {{ br }} queries of one head and walks over blocks of {{ bc }} keys; an invocation makes 4 × 4 scores
// and four rows by {{ nc }} groups of four columns of the result. q, k and v lie in workgroup memory as rows; weights as
// [key][query]. Blocks with the most keys come first. Each invocation sums the weights of its own keys; the shares are
// added at the end, in order. Products and sums are f32.
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}

{% from "shared/attend_place.wgsl" import place, addresses %}
{% from "shared/mask.wgsl" import mask_row %}
{% from "shared/rows.wgsl" import cell, fetch, stage, multiply, add %}
var<workgroup> tile_q: array<vec4<f32>, {{ tile_q }}>;
// keys of a block, then its values
var<workgroup> tile_kv: array<vec4<f32>, {{ tile_kv }}>;
// shares of the rows' greatest scores, then weights; in the end shares of the sums
var<workgroup> weights: array<vec4<f32>, {{ bc * (br // 4) }}>;

{# the block's values, weighted; guarded where some query does not see some key, whose value may hold anything #}
{% macro apply(guarded) %}
        for (var t = 0u; t < {{ bc }}u; t += 1u) {
            let w = weights[t * {{ br // 4 }}u + y];
{% for c in range(nc) %}
            let v{{ c }} = tile_kv[t * {{ tx * nc }}u + x + {{ c * tx }}u];
{% for r in range(4) %}
            {{ add("o" ~ r ~ "_" ~ c, "w." ~ "xyzw"[r], "v" ~ c, guarded) }}
{% endfor %}
{% endfor %}
        }
{% endmacro %}

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
{{ place(br, false) }}
{% set wide = tx %}
{% include "shared/rectangle.wgsl" %}
    let valid = valid_keys(b);
    let last = end_of_keys(min(first + {{ br - 1 }}u, p.sq - 1u), valid);
    // keys before this one are seen by every query of the block
    let all_see = {% if mask %}0{% else %}end_of_keys(first, valid){% endif %};
{{ addresses(reads) }}
    // queries past the end repeat the last one and are not stored
{{ fetch("q", br, columns, threads, "min(first + $r, p.sq - 1u)") -}}
{{ stage("q", br, columns, threads, "tile_q[" ~ cell("r", "c", columns) ~ "]", "$v * p.scale") -}}
{% for i in range(4) %}
    let i{{ i }} = min(first + y * 4u + {{ i }}u, p.sq - 1u);
    let end{{ i }} = end_of_keys(i{{ i }}, valid);
    let at_m{{ i }} = {{ mask_row("i" ~ i, mask) }};
{% for c in range(nc) %}
    var o{{ i }}_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if dropout %}
    let stream = stream_of(h);
{% endif %}
    // of the invocation's four queries
    var top = vec4<f32>(HIDDEN);
    var sum = vec4<f32>(0.0);
    for (var j0 = 0; j0 < last; j0 += {{ bc }}) {
{{ fetch("k", bc, columns, threads, "u32(min(j0 + i32($r), last - 1))") -}}
{{ stage("k", bc, columns, threads, "tile_kv[" ~ cell("r", "c", columns) ~ "]", "$v") -}}
        workgroupBarrier();
        // s: keys of the invocation's row by row
{% for i in range(4) %}
        var s{{ i }} = vec4<f32>(0.0);
{% endfor %}
        for (var c = 0u; c < {{ columns }}u; c += 1u) {
            let at_y = {{ cell("y * 4u", "c", columns) }};
            let at_x = {{ cell("x * 4u", "c", columns) }};
{% for r in range(4) %}
            let a{{ r }} = tile_q[at_y + {{ r * columns }}u];
            let b{{ r }} = tile_kv[at_x + {{ r * columns }}u];
{% endfor %}
{{ multiply("s") }}
        }
        let j = u32(j0) + x * 4u;
{% for r in range(4) %}
        s{{ r }} = vec4<f32>(masked(s{{ r }}.x, at_m{{ r }}, j, end{{ r }}), masked(s{{ r }}.y, at_m{{ r }}, j + 1u, end{{ r }}),
            masked(s{{ r }}.z, at_m{{ r }}, j + 2u, end{{ r }}), masked(s{{ r }}.w, at_m{{ r }}, j + 3u, end{{ r }}));
        let top{{ r }} = max(max(s{{ r }}.x, s{{ r }}.y), max(s{{ r }}.z, s{{ r }}.w));
{% endfor %}
        weights[x * {{ br // 4 }}u + y] = vec4<f32>(top0, top1, top2, top3);
        workgroupBarrier();
        var new_top = top;
        for (var t = 0u; t < {{ tx }}u; t += 1u) {
            new_top = max(new_top, weights[t * {{ br // 4 }}u + y]);
        }
        let shrink = exp(top - new_top);
        top = new_top;
{% for r in range(4) %}
        s{{ r }} = vec4<f32>(weight(s{{ r }}.x, top.{{ "xyzw"[r] }}), weight(s{{ r }}.y, top.{{ "xyzw"[r] }}), weight(s{{ r }}.z, top.{{ "xyzw"[r] }}), weight(s{{ r }}.w, top.{{ "xyzw"[r] }}));
{% endfor %}
        let w0 = vec4<f32>(s0.x, s1.x, s2.x, s3.x);
        let w1 = vec4<f32>(s0.y, s1.y, s2.y, s3.y);
        let w2 = vec4<f32>(s0.z, s1.z, s2.z, s3.z);
        let w3 = vec4<f32>(s0.w, s1.w, s2.w, s3.w);
        sum = sum * shrink + ((w0 + w1) + (w2 + w3));
        workgroupBarrier();
{% if dropout %}
{% for r in range(4) %}
        let z{{ r }} = kept(weights_of(b, i{{ r }}) + j, stream);
{% endfor %}
{% for c in ["x", "y", "z", "w"] %}
        let d{{ loop.index0 }} = w{{ loop.index0 }} * vec4<f32>(z0.{{ c }}, z1.{{ c }}, z2.{{ c }}, z3.{{ c }});
{% endfor %}
{% endif %}
{% for c in range(4) %}
        weights[(x * 4u + {{ c }}u) * {{ br // 4 }}u + y] = {{ "d" if dropout else "w" }}{{ c }};
{% endfor %}
{{ fetch("v", bc, columns, threads, "u32(min(j0 + i32($r), last - 1))") -}}
        // a key that nobody sees may hold anything: 0 in its place
{{ stage("v", bc, columns, threads, "tile_kv[r * " ~ tx * nc ~ "u + c]", "select($v, vec4<f32>(0.0), j0 + i32(r) >= last)") -}}
{% for r in range(4) %}
{% for c in range(nc) %}
        o{{ r }}_{{ c }} *= shrink.{{ "xyzw"[r] }};
{% endfor %}
{% endfor %}
        workgroupBarrier();
        if j0 + {{ bc }} <= all_see {
{{ apply(false) }}
        } else {
{{ apply(true) }}
        }
        workgroupBarrier();
    }
    weights[x * {{ br // 4 }}u + y] = sum;
    workgroupBarrier();
    sum = vec4<f32>(0.0);
    for (var t = 0u; t < {{ tx }}u; t += 1u) {
        sum += weights[t * {{ br // 4 }}u + y];
    }
    let r = select(1.0 / sum, vec4<f32>(0.0), sum == vec4<f32>(0.0));
{% for i in range(4) %}
    if first + y * 4u + {{ i }}u < p.sq {
        let at_o = p.o_offset + b * p.o_batch + i{{ i }} * p.o_row + h * p.o_head;
{% for c in range(nc) %}
        if x + {{ c * tx }}u < {{ columns }}u {
            write_out(at_o, (x + {{ c * tx }}u) * 4u, o{{ i }}_{{ c }} * r.{{ "xyzw"[i] }});
        }
{% endfor %}
{% if lse %}
        if x == 0u {
            lse[p.lse_offset + bh * p.sq + i{{ i }}] = log_sum_exp(top.{{ "xyzw"[i] }}, sum.{{ "xyzw"[i] }});
        }
{% endif %}
    }
{% endfor %}
}
