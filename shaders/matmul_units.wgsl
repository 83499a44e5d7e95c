// C = epilogue(A · B) on matrix units of {{ u.side }} × {{ u.side }}, tile by tile through workgroup memory.
//
// A workgroup of {{ threads }} makes a tile of {{ bm }} × {{ bn }}; {{ u.lanes }} neighbouring invocations, a subgroup, make {{ tm }} × {{ tn }} of it and hold its
// sums. Both operands lie in workgroup memory as they do in the buffers: rows along the dimension in which they are
// contiguous, each with eight numbers of padding, so that rows side by side start in different banks; units load either
// order. The next stage is fetched into registers while this one is used.
{% if eights %}
// Buffers are read eight numbers at a time, as words: two reads of half the size would take twice as long.
{% endif %}
{% if scaled %}
//
// Numbers in the buffers are f32. Each row of A and each column of B is scaled by a power of two that brings its largest
// number to about 2^14, so that no f16 number overflows; the epilogue takes the powers back, half of both at a time,
// so that nothing between overflows either. A row or column that holds no finite or no normal number is scaled by 1.
{% endif %}
{% if split %}
// A number x is split into hi, its upper 11 bits, and lo = x − hi; the product is hi·hi + hi·lo + lo·hi. The units cut off
// what a sum cannot hold instead of rounding it, so sums of {{ fold }} along k are added up in f32 beside them.
{% endif %}
{% if sliced %}
// The inner dimension is cut into slices, each a batch entry with a result of its own; sum_parts.wgsl adds them up.
{% endif %}
{% if sums %}
// Rows of A are summed on the way: an invocation adds up what it fetches, which is of the same rows after each {{ a.period }} fetches.
// At the end these sums are added in turn and stored, where the tile is of the first column.
{% endif %}
{% import "shared/units.wgsl" as unit %}
{% from "shared/product_units.wgsl" import stage_array, registers, fetch, stage, place, stride %}
{% from "shared/product_scales.wgsl" import functions, scales %}
{% from "shared/product_epilogue.wgsl" import extra %}
{% from "shared/product_sums.wgsl" import hold_on_units, finish_on_units %}
{{ unit.enable(u) }}
{% include "shared/product.wgsl" %}

{% for half in u.halves %}
{{ stage_array(a, half, u) }}
{{ stage_array(b, half, u) }}
{% endfor %}
{# a matrix of sums of each subgroup, and how many vec4s of it a lane finishes #}
{% set fours = u.side * u.side // 4 %}
{% set turns = (fours + u.lanes - 1) // u.lanes %}
{{ unit.array("sums_of", "f32", threads // u.lanes * fours, u) }}
{% if scaled %}
{{ functions(a, b, u) }}
{% endif %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    // naga does not see that a return would be uniform
    for (var go = group < p.groups; go; go = false) {
{% include "shared/product_tile.wgsl" %}
    // where the subgroup's share of the tile is
    let share = lane / {{ u.lanes }}u;
    let sub_row = share / {{ bn // tn }}u * {{ tm }}u;
    let sub_col = share % {{ bn // tn }}u * {{ tn }}u;
{{ registers(a, t) }}
{{ registers(b, t) }}
{% set down = tm // u.side %}
{% set over = tn // u.side %}
{% for i in range(down) %}
{% for j in range(over) %}
    var sum{{ i }}_{{ j }} = {{ unit.zero(u) }};
{% endfor %}
{% endfor %}
{% if sums %}
{{ hold_on_units(a, t) }}
{% endif %}
    var k0 = 0u;
{{ fetch(a, t) }}
{{ fetch(b, t) }}
{% if scaled %}
{{ scales(a, b, t, u) }}
{% endif %}
    for (; k0 < {{ k_end }};) {
{% if fold %}
        let chunk_end = min(k0 + {{ fold }}u, {{ k_end }});
{% for i in range(down) %}
{% for j in range(over) %}
        var part{{ i }}_{{ j }} = {{ unit.zero(u) }};
{% endfor %}
{% endfor %}
        for (; k0 < chunk_end;) {
{% endif %}
{% set total = "part" if fold else "sum" %}
{{ stage(a, t, u) }}
{{ stage(b, t, u) }}
        workgroupBarrier();
        k0 += {{ bk }}u;
        if k0 < {{ k_end }} {
{{ fetch(a, t) }}
{{ fetch(b, t) }}
        }
{% for k in range(0, bk, u.side) %}
        {
{% for i in range(down) %}
{% for half in u.halves %}
            {{ unit.load("a" ~ i ~ half, "A", "a_" ~ half, place(a, "sub_row", i * u.side, k), stride(a) ~ "u", a.along_k, u) }}
{% endfor %}
{% endfor %}
{% for j in range(over) %}
{% for half in u.halves %}
            {{ unit.load("b" ~ j ~ half, "B", "b_" ~ half, place(b, "sub_col", j * u.side, k), stride(b) ~ "u", not b.along_k, u) }}
{% endfor %}
{% for left, right in [["lo", "hi"], ["hi", "lo"], ["hi", "hi"]] if split or left == right %}
{% for i in range(down) %}
            {{ unit.multiply_add(total ~ i ~ "_" ~ j, "a" ~ i ~ left, "b" ~ j ~ right, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% endfor %}
        workgroupBarrier();
{% if fold %}
        }
{% for i in range(down) %}
{% for j in range(over) %}
        {{ unit.fold("sum" ~ i ~ "_" ~ j, "part" ~ i ~ "_" ~ j, u) }}
{% endfor %}
{% endfor %}
{% endif %}
    }
    // through the subgroup's part of workgroup memory: only there can a lane reach its numbers, {{ turns }} vec4s of each matrix
    let first = share * {{ fours }}u;
    let my_lane = lane % {{ u.lanes }}u;
{% for turn in range(turns) %}
    let e{{ turn }} = {{ "my_lane + " ~ turn * u.lanes ~ "u" if fours >= u.lanes else "min(my_lane, " ~ (fours - 1) ~ "u)" }};
    let r{{ turn }} = sub_row + e{{ turn }} / {{ u.side // 4 }}u;
    let c{{ turn }} = sub_col + e{{ turn }} % {{ u.side // 4 }}u * 4u;
{% endfor %}
{% for i in range(down) %}
{% if extras %}
    // all reads of a row of matrices ahead of its first store: none may pass one, and each would wait for memory by itself
{% endif %}
{% for j in range(over) %}
{% for turn in range(turns) %}
{% set row = "row0 + r" ~ turn ~ " + " ~ i * u.side ~ "u" %}
{% set col = "col0 + c" ~ turn ~ " + " ~ j * u.side ~ "u" %}
{% for e in extras %}
    let x{{ e.index }}_{{ i }}_{{ j }}_{{ turn }} = {{ extra(e, row, col, guarded) }};
{% endfor %}
{% endfor %}
{% endfor %}
{% for j in range(over) %}
    {{ unit.store("sum" ~ i ~ "_" ~ j, "sums_of", "first", (u.side // 4) ~ "u", u) }}
    {{ unit.meet(u) }}
{% for turn in range(turns) %}
    {{ "if my_lane < " ~ fours ~ "u " if fours < u.lanes }}{
        let r = r{{ turn }} + {{ i * u.side }}u;
        let c = c{{ turn }} + {{ j * u.side }}u;
        let v = {{ unit.read("sums_of", "f32", "first + e" ~ turn, u) }};
        finish_with(s, row0 + r, col0 + c, {{ "unscaled(v, r, c)" if scaled else "v" }}{% for e in extras %}, x{{ e.index }}_{{ i }}_{{ j }}_{{ turn }}{% endfor %});
    }
{% endfor %}
    {{ unit.meet(u) }}
{% endfor %}
{% endfor %}
{% if sums %}
{{ finish_on_units(a, t, u) }}
{% endif %}
    }
}
