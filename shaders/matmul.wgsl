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

{% set size_a = bk // 4 * (bm + a.pad) %}
{% set size_b = bk // 4 * (bn + b.pad) %}
var<workgroup> tile_a: array<vec4<f32>, {{ size_a * stages }}>;
var<workgroup> tile_b: array<vec4<f32>, {{ size_b * stages }}>;

{# the four lines of a block, along k or along the outer dimension. Outside of the matrices nothing is read past them:
lines repeat the last one, whose results are not stored, and are 0 past K #}
{% macro fetch(i, part) %}
{% set side = part.side %}
        {{ part.condition }} {
{% for r in range(4) %}
{% set line = "r" ~ i ~ "_" ~ r %}
{% if not guarded %}
{% set place = "at" ~ i ~ (" + " ~ r ~ "u * stride" ~ i if r > 0 else "") %}
            {{ line }} = {{ "vec4<f32>(" ~ side.name ~ "[" ~ place ~ "])" if side.vec else "read_" ~ side.name ~ "(" ~ place ~ ", 0u, 4u)" }};
{% elif side.vec %}
{% set outside = "k" ~ i ~ (" >= " if side.along_k else " + " ~ r ~ "u >= ") ~ k_end %}
            {
                let outside = {{ outside }};
                let at = select(at{{ i }} + {{ "min(" ~ r ~ "u, last" ~ i ~ ")" if side.along_k else r ~ "u" }} * stride{{ i }}, s.{{ side.name }}, outside);
                {{ line }} = select(vec4<f32>({{ side.name }}[at]), vec4<f32>(0.0), outside);
            }
{% else %}
{% set inner = "k" ~ i ~ ", " ~ k_end if side.along_k else "o" ~ i ~ ", " ~ part.limit %}
            {{ line }} = vec4<f32>(0.0);
            if {{ "o" ~ i if side.along_k else "k" ~ i }} + {{ r }}u < {{ part.limit if side.along_k else k_end }} {
                {{ line }} = read_{{ side.name }}(at{{ i }} + {{ r }}u * stride{{ i }}, {{ inner }});
            }
{% endif %}
{% endfor %}
        }
{% endmacro %}
{% macro fetch_all(step) %}
{% for parts in rounds %}
{% set i = loop.index0 %}
{% if step %}
        at{{ i }} += select(0u, advance{{ i }}, more);
{% if guarded %}
        k{{ i }} += select(0u, {{ bk }}u, more);
{% endif %}
{% endif %}
{% for part in parts %}
{{ fetch(i, part) -}}
{% endfor %}
{% endfor %}
{% endmacro %}

{# the blocks into workgroup memory; rows are summed where `counts` #}
{% macro stage_all(counts) %}
{% for parts in rounds %}
{% set i = loop.index0 %}
{% set r = "r" ~ i ~ "_" %}
{% for part in parts %}
{% set side = part.side %}
{% set outer = part.outer %}
        {{ part.condition }} {
            let to = put{{ i }}{{ " + stage * " ~ (size_a if side.name == "a" else size_b) ~ "u" if stages == 2 }};
{% for j in range(4) %}
{% set e = "xyzw"[j] %}
{% if side.along_k %}
            tile_{{ side.name }}[to + {{ j * (outer // 4) }}u] = vec4<f32>({{ r }}0.{{ e }}, {{ r }}1.{{ e }}, {{ r }}2.{{ e }}, {{ r }}3.{{ e }});
{% else %}
            tile_{{ side.name }}[to + {{ j * (outer // 4) }}u] = {{ r }}{{ j }};
{% endif %}
{% endfor %}
{% if sums and side.name == "a" %}
{% set four = "(" ~ r ~ "0 + " ~ r ~ "1) + (" ~ r ~ "2 + " ~ r ~ "3)" %}
            row_sum += {{ "select(vec4<f32>(0.0), " ~ four ~ ", " ~ counts ~ ")" if counts else four }};
{% endif %}
        }
{% endfor %}
{% endfor %}
{% endmacro %}

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
    // bands of eight tile rows, column by column within a band: neighbouring workgroups share rows of A and columns of B
    let tiles = p.tiles_m * p.tiles_n;
    let tile = group % tiles;
    let band = tile / (8u * p.tiles_n);
    let band_rows = min(p.tiles_m - band * 8u, 8u);
    let in_band = tile - band * 8u * p.tiles_n;
    let row0 = (band * 8u + in_band % band_rows) * {{ bm }}u;
    let col0 = in_band / band_rows * {{ bn }}u;
    let s = bases(group / tiles);
{% set wide = bn // tn %}
{% include "shared/rectangle.wgsl" %}
{% for parts in rounds %}
{% set i = loop.index0 %}
    var at{{ i }} = 0u; // where the first line of the block is in memory
    var stride{{ i }} = 0u; // from there to the next line
    var advance{{ i }} = 0u; // and to that of the next stage
    var put{{ i }} = 0u; // where the block is in workgroup memory
{% if guarded %}
    var k{{ i }} = 0u; // of the first line
    var o{{ i }} = 0u;
    var last{{ i }} = 0u; // the last line inside
{% endif %}
{% for part in parts %}
{% set side = part.side %}
{% set unit = 4 if side.vec else 1 %}
    {{ part.condition }} {
        let id = {{ part.id }};
{% if side.along_k %}
        let k4 = id % {{ bk // 4 }}u;
        let o4 = id / {{ bk // 4 }}u;
{% else %}
        let k4 = id / {{ part.outer // 4 }}u;
        let o4 = id % {{ part.outer // 4 }}u;
{% endif %}
{% if not guarded %}
        let o = {{ part.first }} + o4 * 4u;
{% elif side.vec %}
        let o = min({{ part.first }} + o4 * 4u, {{ part.limit }} - {{ 1 if side.along_k else 4 }}u);
        last{{ i }} = {{ part.limit }} - 1u - o;
        k{{ i }} = k4 * 4u;
{% else %}
        let o = {{ part.first }} + o4 * 4u;
        k{{ i }} = k4 * 4u;
        o{{ i }} = o;
{% endif %}
        put{{ i }} = k4 * {{ part.outer + side.pad }}u + o4;
        stride{{ i }} = p.{{ side.name }}_stride;
{% if guarded and not side.vec and side.along_k %}
        at{{ i }} = s.{{ side.name }} + o * stride{{ i }};
{% elif guarded and not side.vec %}
        at{{ i }} = s.{{ side.name }} + k4 * 4u * stride{{ i }};
        advance{{ i }} = {{ bk }}u * stride{{ i }};
{% elif side.along_k %}
        at{{ i }} = s.{{ side.name }} + o * stride{{ i }} + k4{{ " * 4u" if unit == 1 }};
        advance{{ i }} = {{ bk // unit }}u;
{% else %}
        at{{ i }} = s.{{ side.name }} + k4 * 4u * stride{{ i }} + o{{ " / 4u" if unit == 4 }};
        advance{{ i }} = {{ bk }}u * stride{{ i }};
{% endif %}
    }
{% endfor %}
{% for r in range(4) %}
    var r{{ i }}_{{ r }} = vec4<f32>(0.0);
{% endfor %}
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
{{ fetch_all(false) }}
{% if stages == 2 %}
    var stage = 0u;
    var from_a = y;
    var from_b = x;
{{ stage_all("") }}
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
{{ fetch_all(true) }}
{% for k in range(bk - 1) %}
{{ load(k + 1, (k + 1) % 2, "") -}}
{{ multiply(k % 2) -}}
{% endfor %}
        stage ^= 1u;
        from_a = y + stage * {{ size_a }}u;
        from_b = x + stage * {{ size_b }}u;
{{ stage_all("more") }}
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
{{ stage_all("") }}
        workgroupBarrier();
        staged += {{ bk }}u;
        let more = staged < {{ k_end }};
{{ fetch_all(true) }}
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
    let e{{ e.index }}_{{ j }} = extra{{ e.index }}(s, 0u, {{ "min(my_col" ~ j ~ ", p.n - 1u)" if guarded else "my_col" ~ j }});
{% endfor %}
{% endfor %}
{% for i in range(tm) %}
    let my_row{{ i }} = row0 + y * 4u + {{ (i // 4) * 4 * (bm // tm) + i % 4 }}u;
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
{% set blocks = bm * bk // 16 %}
{% set holders = threads if threads < blocks else blocks %}
    if col0 == 0u {
{% if stages == 2 %}
        workgroupBarrier();
{% endif %}
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
