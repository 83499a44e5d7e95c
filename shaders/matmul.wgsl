{% include "shared/product.wgsl" %}

// C = epilogue(A · B), tile by tile through workgroup memory.
//
// A workgroup of {{ threads }} makes a tile of {{ bm }} × {{ bn }}, an invocation {{ tm }} × {{ tn }} of it: groups of four rows and four
// columns, spread over the tile so that neighbours read neighbouring vec4s. Both operands lie in workgroup memory as
// [k][outer], in vec4s along the outer dimension; an operand stored along k is transposed in registers, four by four.
{% if a.along_k or b.along_k %}
// After each four of its k follows padding of {{ 32 // bk }}: eight invocations store their vec4s at once, {{ bk // 4 }} groups of k by {{ 32 // bk }} of
// outer, and so hit each of 32 banks once.
{% endif %}
// The next tile is fetched into registers while this one is used. Sums run over k in order, in f32.
{% if sliced %}
// The inner dimension is cut into slices, each a batch entry with a result of its own; sum_parts.wgsl adds them up.
{% endif %}
{% if sums %}
// Rows of A are summed on the way: an invocation always fetches the same four rows and adds up what it fetches. At the
// end these sums are added in turn and stored, where the tile is of the first column.
{% endif %}

{# padding in vec4s; without it four k take `outer` of them, a multiple of the eight that cover all banks #}
{% set pad_a = 32 // bk if a.along_k else 0 %}
{% set pad_b = 32 // bk if b.along_k else 0 %}
var<workgroup> tile_a: array<vec4<f32>, {{ bk // 4 * (bm + pad_a) }}>;
var<workgroup> tile_b: array<vec4<f32>, {{ bk // 4 * (bn + pad_b) }}>;

{# what an invocation fetches: blocks of 4 outer × 4 k of an operand stored along k, else vec4s along outer #}
{% macro items(side, outer) %}{{ (outer * bk) // (16 if side.along_k else 4) }}{% endmacro %}

{% macro fetch(side, outer, first, limit) %}
{% set count = items(side, outer)|int %}
{% for i in range((count + threads - 1) // threads) %}
{% if (i + 1) * threads > count %}
    if lane + {{ i * threads }}u < {{ count }}u {
{% else %}
    {
{% endif %}
        let id = lane + {{ i * threads }}u;
{% if side.along_k %}
        let k = k0 + id % {{ bk // 4 }}u * 4u;
        let o = {{ first }} + id / {{ bk // 4 }}u * 4u;
{% for r in range(4) %}
{% if guarded %}
        r{{ side.name }}{{ i }}_{{ r }} = vec4<f32>(0.0);
        if o + {{ r }}u < {{ limit }} {
            r{{ side.name }}{{ i }}_{{ r }} = read_{{ side.name }}(s.{{ side.name }} + (o + {{ r }}u) * p.{{ side.name }}_stride, k, {{ k_end }});
        }
{% else %}
        r{{ side.name }}{{ i }}_{{ r }} = read_{{ side.name }}(s.{{ side.name }} + (o + {{ r }}u) * p.{{ side.name }}_stride, k, {{ k_end }});
{% endif %}
{% endfor %}
{% else %}
        let k = k0 + id / {{ outer // 4 }}u;
        let o = {{ first }} + id % {{ outer // 4 }}u * 4u;
{% if guarded %}
        r{{ side.name }}{{ i }}_0 = vec4<f32>(0.0);
        if k < {{ k_end }} {
            r{{ side.name }}{{ i }}_0 = read_{{ side.name }}(s.{{ side.name }} + k * p.{{ side.name }}_stride, o, {{ limit }});
        }
{% else %}
        r{{ side.name }}{{ i }}_0 = read_{{ side.name }}(s.{{ side.name }} + k * p.{{ side.name }}_stride, o, {{ limit }});
{% endif %}
{% endif %}
    }
{% endfor %}
{% endmacro %}

{% macro stage(side, outer, pad) %}
{% set count = items(side, outer)|int %}
{% for i in range((count + threads - 1) // threads) %}
{% if (i + 1) * threads > count %}
        if lane + {{ i * threads }}u < {{ count }}u {
{% else %}
        {
{% endif %}
            let id = lane + {{ i * threads }}u;
{% set r = "r" ~ side.name ~ i ~ "_" %}
{% if side.along_k %}
            let at = id % {{ bk // 4 }}u * {{ outer + pad }}u + id / {{ bk // 4 }}u;
{% for j in ["x", "y", "z", "w"] %}
            tile_{{ side.name }}[at + {{ loop.index0 * (outer // 4) }}u] = vec4<f32>({{ r }}0.{{ j }}, {{ r }}1.{{ j }}, {{ r }}2.{{ j }}, {{ r }}3.{{ j }});
{% endfor %}
{% else %}
            tile_{{ side.name }}[id] = {{ r }}0;
{% if sums and side.name == "a" %}
            row_sum += {{ r }}0;
{% endif %}
{% endif %}
        }
{% endfor %}
{% endmacro %}

{% macro registers(side, outer) %}
{% set count = items(side, outer)|int %}
{% for i in range((count + threads - 1) // threads) %}
{% for r in range(4 if side.along_k else 1) %}
    var r{{ side.name }}{{ i }}_{{ r }}: vec4<f32>;
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
    // bands of eight tile rows, column by column within a band: neighbouring workgroups share rows of A and columns of B
    let tiles = p.tiles_m * p.tiles_n;
    let tile = group % tiles;
    let band = tile / (8u * p.tiles_n);
    let band_rows = min(p.tiles_m - band * 8u, 8u);
    let in_band = tile - band * 8u * p.tiles_n;
    let row0 = (band * 8u + in_band % band_rows) * {{ bm }}u;
    let col0 = in_band / band_rows * {{ bn }}u;
    let s = bases(group / tiles);
    let tx = lane % {{ bn // tn }}u;
    let ty = lane / {{ bn // tn }}u;
{{ registers(a, bm) }}
{{ registers(b, bn) }}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    var acc{{ i }}_{{ j }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% if sums %}
    var row_sum = vec4<f32>(0.0);
{% endif %}
    var k0 = 0u;
{{ fetch(a, bm, "row0", "p.m") }}
{{ fetch(b, bn, "col0", "p.n") }}
    for (; k0 < {{ k_end }};) {
{{ stage(a, bm, pad_a) }}
{{ stage(b, bn, pad_b) }}
        workgroupBarrier();
        k0 += {{ bk }}u;
        if k0 < {{ k_end }} {
{{ fetch(a, bm, "row0", "p.m") }}
{{ fetch(b, bn, "col0", "p.n") }}
        }
{% for k in range(bk) %}
        {
{% for i in range(tm // 4) %}
            let a{{ i }} = tile_a[ty + {{ k * (bm // 4) + k // 4 * pad_a + i * (bm // tm) }}u];
{% endfor %}
{% for j in range(tn // 4) %}
            let b{{ j }} = tile_b[tx + {{ k * (bn // 4) + k // 4 * pad_b + j * (bn // tn) }}u];
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
            acc{{ i }}_{{ j }} = fma(vec4<f32>(a{{ i // 4 }}.{{ "xyzw"[i % 4] }}), b{{ j }}, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
        }
{% endfor %}
        workgroupBarrier();
    }
{# inputs that are the same for all rows are read once for all; if one alone differs from row to row it is read for all
rows before the first is stored, since no read may pass a store and each would wait for memory by itself #}
{% set by_row = extras|selectattr("by_row")|list %}
{% set first_read = by_row|length == 1 %}
{% for j in range(tn // 4) %}
    let my_col{{ j }} = col0 + tx * 4u + {{ j * 4 * (bn // tn) }}u;
{% for e in extras if not e.by_row %}
    let e{{ e.index }}_{{ j }} = extra{{ e.index }}(s, 0u, {{ "min(my_col" ~ j ~ ", p.n - 1u)" if guarded else "my_col" ~ j }});
{% endfor %}
{% endfor %}
{% for i in range(tm) %}
    let my_row{{ i }} = row0 + ty * 4u + {{ (i // 4) * 4 * (bm // tm) + i % 4 }}u;
{% if first_read %}
{% for j in range(tn // 4) %}
{% for e in by_row %}
    let e{{ e.index }}_{{ i }}_{{ j }} = extra{{ e.index }}(s, {{ "min(my_row" ~ i ~ ", p.m - 1u), min(my_col" ~ j ~ ", p.n - 1u)" if guarded else "my_row" ~ i ~ ", my_col" ~ j }});
{% endfor %}
{% endfor %}
{% endif %}
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    finish_with(s, my_row{{ i }}, my_col{{ j }}, acc{{ i }}_{{ j }}
{%- for e in extras %}, {% if not e.by_row %}e{{ e.index }}_{{ j }}{% elif first_read %}e{{ e.index }}_{{ i }}_{{ j }}{% else %}extra{{ e.index }}(s, {{ "min(my_row" ~ i ~ ", p.m - 1u), min(my_col" ~ j ~ ", p.n - 1u)" if guarded else "my_row" ~ i ~ ", my_col" ~ j }}){% endif %}{% endfor %});
{% endfor %}
{% endfor %}
{% if sums %}
{% set fetched = items(a, bm)|int %}
{% set holders = threads if threads < fetched else fetched %}
    if col0 == 0u {
        // nothing reads the last stage any more
        if lane < {{ holders }}u {
            tile_a[lane] = row_sum;
        }
        workgroupBarrier();
        if lane < {{ bm // 4 }}u {
            var all = tile_a[lane];
{% for i in range(1, holders // (bm // 4)) %}
            all += tile_a[lane + {{ i * (bm // 4) }}u];
{% endfor %}
            let row = row0 + lane * 4u;
            finish_sum(s, row, all.x);
            finish_sum(s, row + 1u, all.y);
            finish_sum(s, row + 2u, all.z);
            finish_sum(s, row + 3u, all.w);
        }
    }
{% endif %}
}
