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

{% from "shared/rows.wgsl" import cell, fetch, stage %}
var<workgroup> own0: array<vec4<f32>, {{ own0 }}>; // {{ ours[0] }}
var<workgroup> own1: array<vec4<f32>, {{ own1 }}>; // {{ ours[1] }}
var<workgroup> other0: array<vec4<f32>, {{ other0 }}>; // {{ theirs[0] }}
var<workgroup> other1: array<vec4<f32>, {{ other1 }}>; // {{ theirs[1] }}
{% set pairs = "own1" if keys else "other1" %}
{% set second = other * tx if keys else 0 %}

{# s and g: the products of the invocation's four rows of the block with its own four #}
{% macro products() %}
{% for r in range(4) %}
        var s{{ r }} = vec4<f32>(0.0);
        var g{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var c = 0u; c < {{ columns }}u; c += 1u) {
            let at_x = {{ cell("x * 4u", "c", columns) }};
            let at_y = {{ cell("y * 4u", "c", columns) }};
{% for s in ["s", "g"] %}
            {
{% for r in range(4) %}
                let b{{ r }} = own{{ 0 if s == "s" else 1 }}[at_x + {{ r * columns }}u];
                let a{{ r }} = other{{ 0 if s == "s" else 1 }}[at_y + {{ r * columns }}u];
{% endfor %}
{% for e in ["x", "y", "z", "w"] %}
                let b_{{ e }} = vec4<f32>(b0.{{ e }}, b1.{{ e }}, b2.{{ e }}, b3.{{ e }});
{% for r in range(4) %}
                {{ s }}{{ r }} = fma(vec4<f32>(a{{ r }}.{{ e }}), b_{{ e }}, {{ s }}{{ r }});
{% endfor %}
{% endfor %}
            }
{% endfor %}
        }
{% endmacro %}
{# pairs · rows of the block; guarded where some query does not see some key, whose rows may hold anything #}
{% macro apply(guarded) %}
            for (var t = 0u; t < {{ other }}u; t += 4u) {
{% for c in range(nc) %}
                let at{{ c }} = {{ cell("t", "y + " ~ c * ty ~ "u", columns) }};
{% endfor %}
{% for i in range(4) %}
                {
{% for sum in writes %}
                    let w_{{ sum }} = {{ pairs }}[(t + {{ i }}u) * {{ tx }}u + x + {{ 0 if sum == "dv" else second }}u];
{% for c in range(nc) %}
                    let u_{{ sum }}{{ c }} = {{ "other1" if sum == "dv" else "other0" }}[at{{ c }} + {{ i * columns }}u];
{% for r in range(4) %}
{% set w = "w_" ~ sum ~ "." ~ "xyzw"[r] %}
{% set o = sum ~ r ~ "_" ~ c %}
{% set more = "fma(vec4<f32>(" ~ w ~ "), u_" ~ sum ~ c ~ ", " ~ o ~ ")" %}
                    {{ o }} = {{ "select(" ~ more ~ ", " ~ o ~ ", " ~ w ~ " == 0.0)" if guarded else more }};
{% endfor %}
{% endfor %}
{% endfor %}
                }
{% endfor %}
            }
{% endmacro %}
{% else %}
// The tile holds {{ chunk }} groups of columns of both sides, a gap after every four rows, while scores are made, then {{ rows }} whole
// rows of the block.

var<workgroup> tile: array<vec4<f32>, {{ tile }}>;
// of the block's rows, in vec4s along own rows: weights, or gradients of scores
var<workgroup> pairs: array<vec4<f32>, {{ other * tx }}>;
{% set pairs = "pairs" %}
{% set second = 0 %}

{% set inside = "c0 + c < " ~ columns ~ "u && " if columns % chunk != 0 else "" %}
{# {{ s }}0 to {{ s }}3: the products of the invocation's four rows of the block with its own four #}
{% macro products(s, theirs, ours) %}
{% for r in range(4) %}
        var {{ s }}{{ r }} = vec4<f32>(0.0);
{% endfor %}
        for (var c0 = 0u; c0 < {{ columns }}u; c0 += {{ chunk }}u) {
            for (var id = lane; id < {{ (other + own) * chunk }}u; id += {{ threads }}u) {
                let c = id % {{ chunk }}u;
                let r = id / {{ chunk }}u;
                // 0 for rows and columns past the end
                var value = vec4<f32>(0.0);
                if r < {{ other }}u {
                    if {{ inside }}t0 + r < end {
                        value = read_{{ theirs }}(at_{{ theirs }} + (t0 + r) * p.{{ theirs }}_row, (c0 + c) * 4u);
                    }
                } else if {{ inside }}first + r - {{ other }}u < {{ own_rows }} {
                    value = read_{{ ours }}(at_{{ ours }} + (first + r - {{ other }}u) * p.{{ ours }}_row, (c0 + c) * 4u);
                }
                tile[r * {{ chunk }}u + r / 4u + c] = value;
            }
            workgroupBarrier();
            for (var c = 0u; c < {{ chunk }}u; c += 1u) {
{% for r in range(4) %}
                let b{{ r }} = tile[x * {{ 4 * chunk + 1 }}u + {{ (other // 4) * (4 * chunk + 1) + r * chunk }}u + c];
{% endfor %}
{% for r in range(4) %}
                let a{{ r }} = tile[y * {{ 4 * chunk + 1 }}u + {{ r * chunk }}u + c];
{% endfor %}
{% for e in ["x", "y", "z", "w"] %}
                let b_{{ e }} = vec4<f32>(b0.{{ e }}, b1.{{ e }}, b2.{{ e }}, b3.{{ e }});
{% for r in range(4) %}
                {{ s }}{{ r }} = fma(vec4<f32>(a{{ r }}.{{ e }}), b_{{ e }}, {{ s }}{{ r }});
{% endfor %}
{% endfor %}
            }
            workgroupBarrier();
        }
{% endmacro %}
{# pairs · rows of the block; guarded where some query does not see some key, whose rows may hold anything #}
{% macro apply(sum, guarded) %}
                for (var t = 0u; t < {{ rows }}u; t += 1u) {
                    let w = pairs[(t1 + t) * {{ tx }}u + x];
{% for c in range(nc) %}
                    let u{{ c }} = tile[t * {{ ty * nc }}u + y + {{ c * ty }}u];
{% for r in range(4) %}
{% set wr = "w." ~ "xyzw"[r] %}
{% set o = sum ~ r ~ "_" ~ c %}
{% if guarded %}
                    {{ o }} = select(fma(vec4<f32>({{ wr }}), u{{ c }}, {{ o }}), {{ o }}, {{ wr }} == 0.0);
{% else %}
                    {{ o }} = fma(vec4<f32>({{ wr }}), u{{ c }}, {{ o }});
{% endif %}
{% endfor %}
{% endfor %}
                }
{% endmacro %}
{# adds to a result what the block gives it #}
{% macro accumulate(sum, theirs) %}
        for (var t1 = 0u; t1 < min({{ other }}u, end - t0); t1 += {{ rows }}u) {
            for (var id = lane; id < {{ rows * columns }}u; id += {{ threads }}u) {
                let c = id % {{ columns }}u;
                let r = id / {{ columns }}u;
                var value = vec4<f32>(0.0);
                if t0 + t1 + r < end {
                    value = read_{{ theirs }}(at_{{ theirs }} + (t0 + t1 + r) * p.{{ theirs }}_row, c * 4u);
                }
                tile[r * {{ ty * nc }}u + c] = value;
            }
            workgroupBarrier();
            if all_see {
{{ apply(sum, false) }}
            } else {
{{ apply(sum, true) }}
            }
            workgroupBarrier();
        }
{% endmacro %}
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
    let heads = p.groups / p.blocks;
    let bh = group % heads;
{% if keys %}
    let first = group / heads * {{ own }}u;
{% else %}
    let first = (p.blocks - 1u - group / heads) * {{ own }}u;
{% endif %}
    let b = bh / p.heads;
    let h = bh % p.heads;
{% set wide = tx %}
{% include "shared/rectangle.wgsl" %}
    let valid = valid_keys(b);
{% for name in ["q", "k", "v", "dout"] %}
    let at_{{ name }} = p.{{ name }}_offset + b * p.{{ name }}_batch + h * p.{{ name }}_head;
{% endfor %}
{% if dropout %}
    let stream = stream_of(b, h);
{% endif %}
{% if keys %}
    let start = first_query(first, valid);
    let end = p.sq;
    let j = first + x * 4u;
{% else %}
    let start = 0u;
    let end = u32(max(end_of_keys(min(first + {{ own - 1 }}u, p.sq - 1u), valid), 0));
{% endif %}
{% if not keys %}
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
{% set zero_own = "select($v, vec4<f32>(0.0), first + r >= " ~ own_rows ~ ")" %}
{% set zero_other = "select($v, vec4<f32>(0.0), t0 + r >= end)" %}
{% set own_row = "min(first + $r, " ~ own_rows ~ " - 1u)" %}
{% set resident = ours[:1] if keys else ours %}
{% for name in resident %}
{{ fetch(name, own, columns, threads, own_row) -}}
{{ stage(name, own, columns, threads, "own" ~ loop.index0 ~ "[" ~ cell("r", "c", columns) ~ "]", zero_own) -}}
{% endfor %}
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
{% if keys %}
{{ fetch(ours[1], own, columns, threads, own_row) -}}
{% endif %}
{% for name in theirs %}
{{ fetch(name, other, columns, threads, "min(t0 + $r, end - 1u)") -}}
{% endfor %}
{% if keys %}
{{ stage(ours[1], own, columns, threads, "own1[" ~ cell("r", "c", columns) ~ "]", zero_own) -}}
{% endif %}
{% for name in theirs %}
{{ stage(name, other, columns, threads, "other" ~ loop.index0 ~ "[" ~ cell("r", "c", columns) ~ "]", zero_other) -}}
{% endfor %}
        workgroupBarrier();
{{ products() -}}
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
{{ accumulate("dv", "dout") }}
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
        if all_see {
{{ apply(false) -}}
        } else {
{{ apply(true) -}}
        }
        workgroupBarrier();
{% else %}
{{ accumulate(writes[0], theirs[0]) }}
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
