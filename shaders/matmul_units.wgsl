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
{{ unit.enable(u) }}
{% include "shared/product.wgsl" %}

{# what is fetched of a row of an operand's stage at a time, the vec4s of a row with padding, the rows, and how often an
   invocation fetches #}
{% set step = 8 if eights else 4 %}
{% macro width(side, outer) %}{{ (bk if side.along_k else outer) // step }}{% endmacro %}
{% macro stride(side, outer) %}{{ (bk if side.along_k else outer) // 4 + 2 }}{% endmacro %}
{% macro rows(side, outer) %}{{ outer if side.along_k else bk }}{% endmacro %}
{% macro fetches(outer) %}{{ (outer * bk // step + threads - 1) // threads }}{% endmacro %}
{% for half in u.halves %}
{{ unit.array("a_" ~ half, "f16", rows(a, bm)|int * stride(a, bm)|int, u) }}
{{ unit.array("b_" ~ half, "f16", rows(b, bn)|int * stride(b, bn)|int, u) }}
{% endfor %}
{# a matrix of sums of each subgroup, and how many vec4s of it a lane finishes #}
{% set fours = u.side * u.side // 4 %}
{% set turns = (fours + u.lanes - 1) // u.lanes %}
{{ unit.array("sums_of", "f32", threads // u.lanes * fours, u) }}
{% if scaled %}
{# where the biased exponents of the scales of the tile's rows and columns are: in the padding of rows along k, which holds
   them exactly as f16, else in arrays of their own #}
{% macro keep_power(side, i, value) %}
{% if side.along_k %}
{{ unit.put(side.name ~ "_hi", i ~ " * " ~ (bk // 4 + 2) ~ "u + " ~ (bk // 4) ~ "u", "vec4<f16>(f16(" ~ value ~ "))", u) }}
{% else %}
powers_{{ side.name }}[{{ i }}] = {{ value }};
{% endif %}
{% endmacro %}
{% macro power(side, i) %}{% if side.along_k %}u32({{ unit.read(side.name ~ "_hi", "f16", "(" ~ i ~ ") * " ~ (bk // 4 + 2) ~ "u + " ~ (bk // 4) ~ "u", u) }}.x){% else %}powers_{{ side.name }}[{{ i }}]{% endif %}{% endmacro %}
{% for side, outer in [[a, bm], [b, bn]] if not side.along_k %}
var<workgroup> powers_{{ side.name }}: array<u32, {{ outer }}>;
{% endfor %}

{% for name, limit in [["a", "p.m"], ["b", "p.n"]] %}
fn power_{{ name }}(s: Bases, i: u32) -> u32 {
    var largest = 0u;
    for (var part = 0u; part < p.exp_{{ name }}_parts; part++) {
        largest = max(largest, exp_{{ name }}[s.exp_{{ name }} + part * p.exp_{{ name }}_part + min(i, {{ limit }} - 1u)]);
    }
    return select(clamp(268u - largest, 1u, 253u), 127u, largest == 0u || largest == 255u);
}
{% endfor %}

fn power_of_two(biased: u32) -> f32 {
    return bitcast<f32>(biased << 23u);
}

// Sums of a row and four columns of the tile without their scales, whose product is taken back in two halves.
fn unscaled(v: vec4<f32>, r: u32, c: u32) -> vec4<f32> {
    let of_columns = vec4<u32>({{ power(b, "c") }}, {{ power(b, "c + 1u") }}, {{ power(b, "c + 2u") }}, {{ power(b, "c + 3u") }});
    let power = vec4<i32>(254) - vec4<i32>(i32({{ power(a, "r") }})) - vec4<i32>(of_columns);
    let half = power >> vec4<u32>(1u);
    let up = bitcast<vec4<f32>>((half + 127) << vec4<u32>(23u));
    let rest = bitcast<vec4<f32>>((power - half + 127) << vec4<u32>(23u));
    return v * up * rest;
}
{% endif %}

{% set T = "vec4<" ~ ("u32" if eights else staged) ~ ">" %}
{% macro registers(side, outer) %}
{% for i in range(fetches(outer)|int) %}
    var r{{ side.name }}{{ i }}: {{ T }};
{% endfor %}
{% endmacro %}

{% macro guard(i, outer) %}{% if (i + 1) * threads > outer * bk // step %}if lane + {{ i * threads }}u < {{ outer * bk // step }}u {% endif %}{% endmacro %}

{% macro scales(side, outer) %}
{% for i in range(fetches(outer)|int) %}
{% if side.along_k %}
    let scale_{{ side.name }}{{ i }} = power_of_two({{ power(side, "min((lane + " ~ i * threads ~ "u) / " ~ (bk // 4) ~ "u, " ~ (outer - 1) ~ "u)") }});
{% elif i < side.period %}
    let o{{ side.name }}{{ i }} = (lane + {{ i * threads }}u) % {{ outer // 4 }}u * 4u;
    let scale_{{ side.name }}{{ i }} = vec4<f32>(
{% for e in range(4) %}
        power_of_two({{ power(side, "o" ~ side.name ~ i ~ " + " ~ e ~ "u") }}),
{% endfor %}
    );
{% endif %}
{% endfor %}
{% endmacro %}

{% macro fetch(side, outer, first, limit) %}
{% for i in range(fetches(outer)|int) %}
    {{ guard(i, outer) }}{
        let id = lane + {{ i * threads }}u;
{% if side.along_k %}
        let o = {{ first }} + id / {{ bk // step }}u;
        let at = s.{{ side.name }} + o * p.{{ side.name }}_stride;
        let along = k0 + id % {{ bk // step }}u * {{ step }}u;
{% set inside = "o < " ~ limit %}
{% set end = k_end %}
{% else %}
        let k = k0 + id / {{ outer // step }}u;
        let at = s.{{ side.name }} + k * p.{{ side.name }}_stride;
        let along = {{ first }} + id % {{ outer // step }}u * {{ step }}u;
{% set inside = "k < " ~ k_end %}
{% set end = limit %}
{% endif %}
{% if guarded %}
        r{{ side.name }}{{ i }} = {{ T }}({{ "0u" if eights else "0.0" }});
        if {{ inside }} {
            r{{ side.name }}{{ i }} = read_{{ side.name }}(at, along, {{ end }});
        }
{% else %}
        r{{ side.name }}{{ i }} = read_{{ side.name }}(at, along, {{ end }});
{% endif %}
    }
{% endfor %}
{% endmacro %}

{% macro stage(side, outer) %}
{% for i in range(fetches(outer)|int) %}
        {{ guard(i, outer) }}{
            let id = lane + {{ i * threads }}u;
            let at = id / {{ width(side, outer) }}u * {{ stride(side, outer) }}u + id % {{ width(side, outer) }}u{{ " * 2u" if eights else "" }};
{% if sums and side.name == "a" %}
{% if eights %}
            row_sum{{ i % a.period }}_0 += vec4<f32>(unpack2x16float(ra{{ i }}.x), unpack2x16float(ra{{ i }}.y));
            row_sum{{ i % a.period }}_1 += vec4<f32>(unpack2x16float(ra{{ i }}.z), unpack2x16float(ra{{ i }}.w));
{% else %}
            row_sum{{ i % a.period }}_0 += vec4<f32>(ra{{ i }});
{% endif %}
{% endif %}
{% if eights %}
            let v = r{{ side.name }}{{ i }};
            {{ unit.put(side.name ~ "_hi", "at", "vec4<f16>(vec2<f16>(unpack2x16float(v.x)), vec2<f16>(unpack2x16float(v.y)))", u) }}
            {{ unit.put(side.name ~ "_hi", "at + 1u", "vec4<f16>(vec2<f16>(unpack2x16float(v.z)), vec2<f16>(unpack2x16float(v.w)))", u) }}
{% else %}
{% if scaled %}
            let v = r{{ side.name }}{{ i }} * scale_{{ side.name }}{{ i if side.along_k else i % side.period }};
{% else %}
            let v = r{{ side.name }}{{ i }};
{% endif %}
{% if split %}
            let hi = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
            {{ unit.put(side.name ~ "_hi", "at", "vec4<f16>(hi)", u) }}
            {{ unit.put(side.name ~ "_lo", "at", "vec4<f16>(v - hi)", u) }}
{% else %}
            {{ unit.put(side.name ~ "_hi", "at", "vec4<f16>(v)", u) }}
{% endif %}
{% endif %}
        }
{% endfor %}
{% endmacro %}

{# where a matrix starts in a stage: `along` of the outer dimension, an expression, `outer` more of it, and k #}
{% macro place(side, size, along, outer, k) %}{% if side.along_k %}({{ along }} + {{ outer }}u) * {{ stride(side, size) }}u + {{ k // 4 }}u{% else %}({{ along }} + {{ outer }}u) / 4u + {{ k * stride(side, size)|int }}u{% endif %}{% endmacro %}

@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    // naga does not see that a return would be uniform
    for (var go = group < p.groups; go; go = false) {
    // bands of eight tile rows, column by column within a band: neighbouring workgroups share rows of A and columns of B
    let tiles = p.tiles_m * p.tiles_n;
    let tile = group % tiles;
    let band = tile / (8u * p.tiles_n);
    let band_rows = min(p.tiles_m - band * 8u, 8u);
    let in_band = tile - band * 8u * p.tiles_n;
    let row0 = (band * 8u + in_band % band_rows) * {{ bm }}u;
    let col0 = in_band / band_rows * {{ bn }}u;
    let s = bases(group / tiles);
    // where the subgroup's share of the tile is
    let share = lane / {{ u.lanes }}u;
    let sub_row = share / {{ bn // tn }}u * {{ tm }}u;
    let sub_col = share % {{ bn // tn }}u * {{ tn }}u;
{{ registers(a, bm) }}
{{ registers(b, bn) }}
{% set down = tm // u.side %}
{% set over = tn // u.side %}
{% for i in range(down) %}
{% for j in range(over) %}
    var sum{{ i }}_{{ j }} = {{ unit.zero(u) }};
{% endfor %}
{% endfor %}
{% if sums %}
{% for i in range([a.period, fetches(bm)|int]|min) %}
{% for part in range(step // 4) %}
    var row_sum{{ i }}_{{ part }} = vec4<f32>(0.0);
{% endfor %}
{% endfor %}
{% endif %}
    var k0 = 0u;
{{ fetch(a, bm, "row0", "p.m") }}
{{ fetch(b, bn, "col0", "p.n") }}
{% if scaled %}
    for (var i = lane; i < {{ bm }}u; i += {{ threads }}u) {
        {{ keep_power(a, "i", "power_a(s, row0 + i)") }}
    }
    for (var i = lane; i < {{ bn }}u; i += {{ threads }}u) {
        {{ keep_power(b, "i", "power_b(s, col0 + i)") }}
    }
    workgroupBarrier();
{{ scales(a, bm) }}
{{ scales(b, bn) }}
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
{{ stage(a, bm) }}
{{ stage(b, bn) }}
        workgroupBarrier();
        k0 += {{ bk }}u;
        if k0 < {{ k_end }} {
{{ fetch(a, bm, "row0", "p.m") }}
{{ fetch(b, bn, "col0", "p.n") }}
        }
{% for k in range(0, bk, u.side) %}
        {
{% for i in range(down) %}
{% for half in u.halves %}
            {{ unit.load("a" ~ i ~ half, "A", "a_" ~ half, place(a, bm, "sub_row", i * u.side, k), stride(a, bm) ~ "u", a.along_k, u) }}
{% endfor %}
{% endfor %}
{% for j in range(over) %}
{% for half in u.halves %}
            {{ unit.load("b" ~ j ~ half, "B", "b_" ~ half, place(b, bn, "sub_col", j * u.side, k), stride(b, bn) ~ "u", not b.along_k, u) }}
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
{% for t in range(turns) %}
    let e{{ t }} = {{ "my_lane + " ~ t * u.lanes ~ "u" if fours >= u.lanes else "min(my_lane, " ~ (fours - 1) ~ "u)" }};
    let r{{ t }} = sub_row + e{{ t }} / {{ u.side // 4 }}u;
    let c{{ t }} = sub_col + e{{ t }} % {{ u.side // 4 }}u * 4u;
{% endfor %}
{% for i in range(down) %}
{% if extras %}
    // all reads of a row of matrices ahead of its first store: none may pass one, and each would wait for memory by itself
{% endif %}
{% for j in range(over) %}
{% for t in range(turns) %}
{% set row = "row0 + r" ~ t ~ " + " ~ i * u.side ~ "u" %}
{% set col = "col0 + c" ~ t ~ " + " ~ j * u.side ~ "u" %}
{% for e in extras %}
    let x{{ e.index }}_{{ i }}_{{ j }}_{{ t }} = extra{{ e.index }}(s, {{ "min(" ~ row ~ ", p.m - 1u), min(" ~ col ~ ", p.n - 1u)" if guarded else row ~ ", " ~ col }});
{% endfor %}
{% endfor %}
{% endfor %}
{% for j in range(over) %}
    {{ unit.store("sum" ~ i ~ "_" ~ j, "sums_of", "first", (u.side // 4) ~ "u", u) }}
    {{ unit.meet(u) }}
{% for t in range(turns) %}
    {{ "if my_lane < " ~ fours ~ "u " if fours < u.lanes }}{
        let r = r{{ t }} + {{ i * u.side }}u;
        let c = c{{ t }} + {{ j * u.side }}u;
        let v = {{ unit.read("sums_of", "f32", "first + e" ~ t, u) }};
        finish_with(s, row0 + r, col0 + c, {{ "unscaled(v, r, c)" if scaled else "v" }}{% for e in extras %}, x{{ e.index }}_{{ i }}_{{ j }}_{{ t }}{% endfor %});
    }
{% endfor %}
    {{ unit.meet(u) }}
{% endfor %}
{% endfor %}
{% if sums %}
{# vec4s of sums that invocations hold, in turn of the same rows after each bm // 4; and as many of them as the array
   holds #}
{% set held = [threads * a.period * step, bm * bk]|min // 4 %}
{% set room = threads // u.lanes * fours // (bm // 4) * (bm // 4) %}
    if col0 == 0u {
        workgroupBarrier();
        var all = vec4<f32>(0.0);
{% for start in range(0, held, room) %}
{% set end = [start + room, held]|min %}
{% for i in range([a.period, fetches(bm)|int]|min) %}
{% for part in range(step // 4) %}
        {
            let at = (lane + {{ i * threads }}u) * {{ step // 4 }}u + {{ part }}u;
            if at >= {{ start }}u && at < {{ end }}u {
                {{ unit.put("sums_of", "at - " ~ start ~ "u", "row_sum" ~ i ~ "_" ~ part, u) }}
            }
        }
{% endfor %}
{% endfor %}
        workgroupBarrier();
        if lane < {{ bm // 4 }}u {
{% for i in range(0, end - start, bm // 4) %}
            all += {{ unit.read("sums_of", "f32", "lane + " ~ i ~ "u", u) }};
{% endfor %}
        }
        workgroupBarrier();
{% endfor %}
        if lane < {{ bm // 4 }}u {
            let row = row0 + lane * 4u;
            finish_sum(s, row, all.x);
            finish_sum(s, row + 1u, all.y);
            finish_sum(s, row + 2u, all.z);
            finish_sum(s, row + 3u, all.w);
        }
    }
{% endif %}
    }
}
