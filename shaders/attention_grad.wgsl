{% from "shared/attend_place.wgsl" import place, addresses, other_side %}
{% include "shared/attend_grad.wgsl" %}

{% if keys %}
// dv = (w · z)ᵀ dout and dk = scale · gᵀ q, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% else %}
// dq = scale · g k, with w = e^(q kᵀ · scale + mask - log-sum-exp) the weights, z what dropout
{% endif %}
// multiplies them with, g = w · (z · (dout vᵀ) - delta) the gradient of the scores and delta the sums of dout · out:
// without scores in memory (Dao, arXiv 2307.08691, section 2.3.2).
//
// A workgroup of {{ threads }} has {{ own }} {{ "keys" if keys else "queries" }} of one head and walks over blocks of {{ other }} {{ "queries" if keys else "keys" }}; an invocation makes 4 × 4 scores
// and their gradients, and of the results the same four rows by {{ nc }} groups of four columns. Blocks with the most pairs
// come first. Products and sums are f32; a row of a result is summed over {{ "queries" if keys else "keys" }} in order.
{% if uncut %}
// Whole rows of both sides lie in workgroup memory. Once scores and their gradients are made, the weights and gradients of
// pairs take the place of {{ "own" if keys else "the block's" }} rows of {{ ours[1] if keys else theirs[1] }}.

var<workgroup> own0: array<vec4<f32>, {{ own0 }}>; // {{ ours[0] }}
var<workgroup> own1: array<vec4<f32>, {{ own1 }}>; // {{ ours[1] }}
var<workgroup> other0: array<vec4<f32>, {{ other0 }}>; // {{ theirs[0] }}
var<workgroup> other1: array<vec4<f32>, {{ other1 }}>; // {{ theirs[1] }}
{# where weights of pairs lie, and how far behind them gradients of scores #}
{% set pairs = "own1" if keys else "other1" %}
{% set second = other * tx if keys else 0 %}
{% from "shared/attend_grad_whole.wgsl" import stage_own, stage_block, products, add_up %}
{% else %}
// The tile holds {{ chunk }} groups of columns of both sides, a gap after every four rows, while scores are made, then {{ rows }} whole
// rows of the block.

var<workgroup> tile: array<vec4<f32>, {{ tile }}>;
// of the block's rows, in vec4s along own rows: weights, or gradients of scores
var<workgroup> pairs: array<vec4<f32>, {{ other * tx }}>;
{% set pairs = "pairs" %}
{% set second = 0 %}
{% from "shared/attend_grad_tile.wgsl" import products, add_up %}
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
{{ place(own, keys) }}
{% set wide = tx %}
{% include "shared/rectangle.wgsl" %}
    let valid = valid_keys(b);
{{ addresses(reads) }}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{{ other_side(own, keys) }}
{% if keys %}
    let j = first + x * 4u;
{% else %}
{% for r in range(4) %}
    let query{{ r }} = query_of(b, h, first + x * 4u + {{ r }}u, valid);
{% endfor %}
{% endif %}
{% for r in range(4) %}
{% for c in range(nc) %}
{% for sum in writes %}
    var {{ sum }}{{ r }}_{{ c }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% endfor %}
{% if uncut %}
{{ stage_own() }}
{% endif %}
    for (var t0 = start; t0 < end; t0 += {{ other }}u) {
{% if keys %}
{% for r in range(4) %}
        let query{{ r }} = query_of(b, h, t0 + y * 4u + {{ r }}u, valid);
{% endfor %}
{% else %}
        let j = t0 + y * 4u;
{% endif %}
        // whether every query of the block sees every key of it
{% if mask %}
        let all_see = false;
{% elif keys %}
        let all_see = end_of_keys(t0, valid) >= i32(first + {{ own }}u);
{% else %}
        let all_see = i32(t0 + {{ other }}u) <= end_of_keys(first, valid);
{% endif %}
{% if uncut %}
{{ stage_block() }}
        workgroupBarrier();
{{ products() }}
        workgroupBarrier();
{% else %}
{{ products("s", theirs[0], ours[0]) }}
{% endif %}
{# row r of the block with own row c: the query's number, and how far the key is from j #}
{% for r in range(4) %}
        let w{{ r }} = vec4<f32>(
{%- for c in range(4) %}pair_weight(s{{ r }}.{{ "xyzw"[c] }}, query{{ r if keys else c }}, j + {{ c if keys else r }}u){{ ", " if c < 3 }}{% endfor %});
{% endfor %}
{% if dropout and keys %}
{% for r in range(4) %}
        let z{{ r }} = kept(query{{ r }}.at_w + j, stream);
{% endfor %}
{% elif dropout %}
{% for c in range(4) %}
        let row{{ c }} = kept(query{{ c }}.at_w + j, stream);
{% endfor %}
{% for r in ["x", "y", "z", "w"] %}
        let z{{ loop.index0 }} = vec4<f32>(row0.{{ r }}, row1.{{ r }}, row2.{{ r }}, row3.{{ r }});
{% endfor %}
{% endif %}
{% if keys %}
{% for r in range(4) %}
        {{ pairs }}[(y * 4u + {{ r }}u) * {{ tx }}u + x] = w{{ r }}{{ " * z" ~ r if dropout }};
{% endfor %}
{% endif %}
{% if not uncut %}
{% if keys %}
{{ add_up("dv", "dout") }}
{% endif %}
{{ products("g", theirs[1], ours[1]) }}
{% endif %}
{% for r in range(4) %}
{% set dw = "z" ~ r ~ " * g" ~ r if dropout else "g" ~ r %}
        let dw{{ r }} = {{ dw }};
        {{ pairs }}[(y * 4u + {{ r }}u) * {{ tx }}u + x + {{ second }}u] = vec4<f32>(
{%- for c in ["x", "y", "z", "w"] %}score_grad(w{{ r }}.{{ c }}, dw{{ r }}.{{ c }}, query{{ r if keys else loop.index0 }}.delta){{ ", " if not loop.last }}{% endfor %});
{% endfor %}
{% if uncut %}
        workgroupBarrier();
{{ add_up() }}
        workgroupBarrier();
{% else %}
{{ add_up(writes[0], theirs[0]) }}
{% endif %}
    }
{% for r in range(4) %}
    if first + x * 4u + {{ r }}u < {{ own_rows }} {
        let at_o = p.o_offset + b * p.o_batch + (first + x * 4u + {{ r }}u) * p.o_row + h * p.o_head;
{% if keys %}
        let at_dv = p.dv_offset + b * p.dv_batch + (first + x * 4u + {{ r }}u) * p.dv_row + h * p.dv_head;
{% endif %}
{% for c in range(nc) %}
        if y + {{ c * ty }}u < {{ columns }}u {
            write_{{ writes[0] }}(at_o, (y + {{ c * ty }}u) * 4u, {{ writes[0] }}{{ r }}_{{ c }} * p.scale);
{% if keys %}
            write_dv(at_dv, (y + {{ c * ty }}u) * 4u, dv{{ r }}_{{ c }});
{% endif %}
        }
{% endfor %}
    }
{% endfor %}
}
