{% include "shared/product.wgsl" %}

// C = epilogue(A · B), tile by tile through workgroup memory.
//
// A workgroup of {{ threads }} makes a tile of {{ bm }} × {{ bn }}, an invocation {{ tm }} × {{ tn }} of it: groups of four rows and four
// columns, spread over the tile. Both operands lie in workgroup memory as [k][outer], in vec4s along the outer dimension.
// A stage is fetched in blocks of four k by four outer, first those of A, then those of B; an operand stored along k is
// transposed in registers.
{% if a.along_k or b.along_k %}
// After each four of its k follows padding: eight invocations store their vec4s at once, {{ bk // 4 }} groups of k by {{ 32 // bk or 1 }} of
// outer, and so hit each of 32 banks once.
{% endif %}
// The next stage is fetched into registers while this one is used; after the last, that one once more, which costs less
// than a branch. Sums run over k in order, in f32.
{% if stages == 2 %}
// Stages take turns in two places, with one barrier each, and vec4s are read one k ahead of their use, across barriers
// too: a workgroup that has a core to itself waits for nothing.
{% endif %}
{% if sliced %}
// The inner dimension is cut into slices, each a batch entry with a result of its own; sum_parts.wgsl adds them up.
{% endif %}
{% if sums %}
// Rows of A are summed on the way: an invocation always fetches the same four rows and adds up what it stages. At the
// end these sums are added in turn and stored, where the tile is of the first column.
{% endif %}
{% from "shared/product_blocks.wgsl" import place, fetch_all, stage_all %}
{% from "shared/product_epilogue.wgsl" import extra, extra_of_column %}
{% from "shared/product_sums.wgsl" import finish %}

var<workgroup> tile_a: array<vec4<f32>, {{ a.fours * stages }}>;
var<workgroup> tile_b: array<vec4<f32>, {{ b.fours * stages }}>;

{# an invocation's vec4s at one k, into variables of a set #}
{% macro load(k, set, declare) %}
{% for i in range(tm // 4) %}
            {{ declare }}a{{ set }}_{{ i }} = tile_a[from_a + {{ k * (bm // 4) + k // 4 * a.pad + i * (bm // tm) }}u];
{% endfor %}
{% for j in range(tn // 4) %}
            {{ declare }}b{{ set }}_{{ j }} = tile_b[from_b + {{ k * (bn // 4) + k // 4 * b.pad + j * (bn // tn) }}u];
{% endfor %}
{% endmacro %}
{# there and back again: neighbours share a column #}
{% macro multiply(set) %}
{% for i in range(tm) %}
{% for back in range(tn // 4) %}
{% set j = back if i % 2 == 0 else tn // 4 - 1 - back %}
            acc{{ i }}_{{ j }} = fma(vec4<f32>(a{{ set }}_{{ i // 4 }}.{{ "xyzw"[i % 4] }}), b{{ set }}_{{ j }}, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
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
{% include "shared/product_tile.wgsl" %}
{% set wide = bn // tn %}
{% include "shared/rectangle.wgsl" %}
{% for parts in rounds %}
{{ place(loop.index0, parts, t) -}}
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    var acc{{ i }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if sums %}
    var row_sum = vec4<f32>(0.0);
{% endif %}
    var staged = 0u; // of K
{{ fetch_all(rounds, false, t) }}
{% if stages == 2 %}
    var stage = 0u;
    var from_a = y;
    var from_b = x;
{{ stage_all(rounds, "", t) }}
    workgroupBarrier();
{{ load(0, 0, "var ") }}
{% for i in range(tm // 4) %}
    var a1_{{ i }}: vec4<f32>;
{% endfor %}
{% for j in range(tn // 4) %}
    var b1_{{ j }}: vec4<f32>;
{% endfor %}
    loop {
        staged += {{ bk }}u;
        let more = staged < {{ k_end }};
{{ fetch_all(rounds, true, t) }}
{% for k in range(bk - 1) %}
{{ load(k + 1, (k + 1) % 2, "") -}}
{{ multiply(k % 2) -}}
{% endfor %}
        stage ^= 1u;
        from_a = y + stage * {{ a.fours }}u;
        from_b = x + stage * {{ b.fours }}u;
{{ stage_all(rounds, "more", t) }}
        workgroupBarrier();
{{ load(0, 0, "") -}}
{{ multiply(1) }}
        if !more {
            break;
        }
    }
{% else %}
    let from_a = y;
    let from_b = x;
    loop {
{{ stage_all(rounds, "", t) }}
        workgroupBarrier();
        staged += {{ bk }}u;
        let more = staged < {{ k_end }};
{{ fetch_all(rounds, true, t) }}
{% for k in range(bk) %}
        {
{{ load(k, 0, "let ") -}}
{{ multiply(0) -}}
        }
{% endfor %}
        workgroupBarrier();
        if !more {
            break;
        }
    }
{% endif %}
{# inputs that are the same for all rows are read once for all; if one alone differs from row to row it is read for all
rows before the first is stored, since no read may pass a store and each would wait for memory by itself, as far as
registers hold them #}
{% set by_row = extras|selectattr("by_row")|list %}
{% set first_read = by_row|length == 1 and tm * tn <= 64 %}
{% for j in range(tn // 4) %}
    let my_col{{ j }} = col0 + x * 4u + {{ j * 4 * (bn // tn) }}u;
{% for e in extras if not e.by_row %}
    let e{{ e.index }}_{{ j }} = {{ extra_of_column(e, "my_col" ~ j, guarded) }};
{% endfor %}
{% endfor %}
{% for i in range(tm) %}
    let my_row{{ i }} = row0 + y * 4u + {{ (i // 4) * 4 * (bm // tm) + i % 4 }}u;
{% if first_read %}
{% for j in range(tn // 4) %}
{% for e in by_row %}
    let e{{ e.index }}_{{ i }}_{{ j }} = {{ extra(e, "my_row" ~ i, "my_col" ~ j, guarded) }};
{% endfor %}
{% endfor %}
{% endif %}
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    finish_with(s, my_row{{ i }}, my_col{{ j }}, acc{{ i }}_{{ j }}
{%- for e in extras %}, {% if not e.by_row %}e{{ e.index }}_{{ j }}{% elif first_read %}e{{ e.index }}_{{ i }}_{{ j }}{% else %}{{ extra(e, "my_row" ~ i, "my_col" ~ j, guarded) }}{% endif %}{% endfor %});
{% endfor %}
{% endfor %}
{% if sums %}
{{ finish(a, t) -}}
{% endif %}
}
