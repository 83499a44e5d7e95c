{% include "shared/attend.wgsl" %}

// out = softmax(q kᵀ · scale + mask) v, without the scores in memory (Dao et al., arXiv 2205.14135; running maximum
// by Milakov and Gimelshein, arXiv 1805.02867).
//
// A workgroup of {{ threads }} has {{ br }} queries of one head and walks over blocks of {{ bc }} keys; an invocation makes 4 × 4 scores
// and four rows by {{ nc }} groups of four columns of the result. q and k lie in workgroup memory as [column][row], in vec4s
// along rows; weights as [key][query]. Blocks with the most keys come first. Each invocation sums the weights of its own
// keys; the shares are added at the end, in order. Products and sums are f32.
{% if dropout %}
// Dropout acts on the weights of the values, not on their sum.
{% endif %}

var<workgroup> tile_q: array<vec4<f32>, {{ columns * 4 * (br // 4) }}>;
// keys of a block, then its values
var<workgroup> tile_kv: array<vec4<f32>, {{ kv }}>;
var<workgroup> weights: array<vec4<f32>, {{ bc * (br // 4) }}>;
var<workgroup> shares: array<vec4<f32>, {{ tx * (br // 4) }}>;

{# the block's values, weighted; guarded where some query does not see some key, whose value may hold anything #}
{% macro apply(guarded) %}
        for (var t = 0u; t < {{ bc }}u; t += 1u) {
            let w = weights[t * {{ br // 4 }}u + y];
{% for c in range(nc) %}
            let v{{ c }} = tile_kv[t * {{ tx * nc }}u + x + {{ c * tx }}u];
{% for r in range(4) %}
{% set wr = "w." ~ "xyzw"[r] %}
{% if guarded %}
            o{{ r }}_{{ c }} = select(fma(vec4<f32>({{ wr }}), v{{ c }}, o{{ r }}_{{ c }}), o{{ r }}_{{ c }}, {{ wr }} == 0.0);
{% else %}
            o{{ r }}_{{ c }} = fma(vec4<f32>({{ wr }}), v{{ c }}, o{{ r }}_{{ c }});
{% endif %}
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
    // the last block of every head, then the one before
    let heads = p.groups / p.blocks;
    let bh = group % heads;
    let first = (p.blocks - 1u - group / heads) * {{ br }}u;
    let b = bh / p.heads;
    let h = bh % p.heads;
    let x = lane % {{ tx }}u;
    let y = lane / {{ tx }}u;
    let valid = valid_keys(b);
    let last = end_of_keys(min(first + {{ br - 1 }}u, p.sq - 1u), valid);
    // keys before this one are seen by every query of the block
    let all_see = {% if mask %}0{% else %}end_of_keys(first, valid){% endif %};
    let at_q = p.q_offset + b * p.q_batch + h * p.q_head;
    let at_k = p.k_offset + b * p.k_batch + h * p.k_head;
    let at_v = p.v_offset + b * p.v_batch + h * p.v_head;
    for (var id = lane; id < {{ columns * (br // 4) }}u; id += {{ threads }}u) {
        let c = id % {{ columns }}u;
        let r = id / {{ columns }}u;
        // queries past the end repeat the last one and are not stored
{% for i in range(4) %}
        let x{{ i }} = read_q(at_q + min(first + r * 4u + {{ i }}u, p.sq - 1u) * p.q_row, c * 4u) * p.scale;
{% endfor %}
{% for i in ["x", "y", "z", "w"] %}
        tile_q[(c * 4u + {{ loop.index0 }}u) * {{ br // 4 }}u + r] = vec4<f32>(x0.{{ i }}, x1.{{ i }}, x2.{{ i }}, x3.{{ i }});
{% endfor %}
    }
{% for i in range(4) %}
    let i{{ i }} = min(first + y * 4u + {{ i }}u, p.sq - 1u);
    let end{{ i }} = end_of_keys(i{{ i }}, valid);
    let at_m{{ i }} = {% if mask %}p.m_offset + b * p.m_batch + i{{ i }} * p.m_row + h * p.m_head{% else %}0u{% endif %};
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
        for (var id = lane; id < {{ columns * (bc // 4) }}u; id += {{ threads }}u) {
            let c = id % {{ columns }}u;
            let r = id / {{ columns }}u;
{% for i in range(4) %}
            let x{{ i }} = read_k(at_k + u32(min(j0 + i32(r * 4u) + {{ i }}, last - 1)) * p.k_row, c * 4u);
{% endfor %}
{% for i in ["x", "y", "z", "w"] %}
            tile_kv[(c * 4u + {{ loop.index0 }}u) * {{ bc // 4 }}u + r] = vec4<f32>(x0.{{ i }}, x1.{{ i }}, x2.{{ i }}, x3.{{ i }});
{% endfor %}
        }
        workgroupBarrier();
        // s: keys of the invocation's row by row
{% for i in range(4) %}
        var s{{ i }} = vec4<f32>(0.0);
{% endfor %}
        for (var c = 0u; c < {{ columns * 4 }}u; c += 4u) {
{% for i in range(4) %}
            {
                let a = tile_q[(c + {{ i }}u) * {{ br // 4 }}u + y];
                let kk = tile_kv[(c + {{ i }}u) * {{ bc // 4 }}u + x];
{% for r in range(4) %}
                s{{ r }} = fma(vec4<f32>(a.{{ "xyzw"[r] }}), kk, s{{ r }});
{% endfor %}
            }
{% endfor %}
        }
        let j = u32(j0) + x * 4u;
{% for r in range(4) %}
        s{{ r }} = vec4<f32>(masked(s{{ r }}.x, at_m{{ r }}, j, end{{ r }}), masked(s{{ r }}.y, at_m{{ r }}, j + 1u, end{{ r }}),
            masked(s{{ r }}.z, at_m{{ r }}, j + 2u, end{{ r }}), masked(s{{ r }}.w, at_m{{ r }}, j + 3u, end{{ r }}));
        let top{{ r }} = max(max(s{{ r }}.x, s{{ r }}.y), max(s{{ r }}.z, s{{ r }}.w));
{% endfor %}
        shares[x * {{ br // 4 }}u + y] = vec4<f32>(top0, top1, top2, top3);
        workgroupBarrier();
        var new_top = top;
        for (var t = 0u; t < {{ tx }}u; t += 1u) {
            new_top = max(new_top, shares[t * {{ br // 4 }}u + y]);
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
        for (var id = lane; id < {{ bc * columns }}u; id += {{ threads }}u) {
            let c = id % {{ columns }}u;
            let r = id / {{ columns }}u;
            // a key that nobody sees may hold anything: 0 in its place
            var value = vec4<f32>(0.0);
            if j0 + i32(r) < last {
                value = read_v(at_v + u32(j0 + i32(r)) * p.v_row, c * 4u);
            }
            tile_kv[r * {{ tx * nc }}u + c] = value;
        }
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
    shares[x * {{ br // 4 }}u + y] = sum;
    workgroupBarrier();
    sum = vec4<f32>(0.0);
    for (var t = 0u; t < {{ tx }}u; t += 1u) {
        sum += shares[t * {{ br // 4 }}u + y];
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
