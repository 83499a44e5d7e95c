{% import "shared/units.wgsl" as unit %}
{% set M = u.side * u.side // 4 %}
{% set nv = width // 4 %}
{% set blocks = width // u.side %}
{% set down = rows // u.side %}
{% set over = blocks // subs %}
{% set halves = u.halves | length %}
{# matrices of sums that a subgroup turns into vec4s at once, those of a row of them, rows that lanes side by side have, and
   of a lane: rows of a matrix, and vec4s of a row of matrices and of one of the subgroup's columns #}
{% set beside = 1 if M >= u.lanes else u.lanes // M %}
{% set fours = beside * u.side // 4 %}
{% set at_once = u.lanes // fours if u.lanes >= fours else 1 %}
{% set mine = u.side // at_once %}
{% set each = 1 if u.lanes >= fours else fours %}
{% set columns = over // beside * each %}
{# distances between rows, in vec4s: of rows that are carried, of sums #}
{% set at_row = nv + 2 %}
{% set at_sum = fours + 1 %}
{# eights of a subgroup's weights of a step along the inner dimension, and of all; from column to column of them in
   workgroup memory, and from stage to stage #}
{% set eights = over * halves * M // 2 %}
{% set step = blocks * halves * M // 2 %}
{% set part = (u.side + 7) // 8 %}
{% set at_column = u.side // 4 + 2 %}
{% set region = over * halves * u.side * at_column %}
// {{ "A stack of linear layers backwards, from the gradient of its result to that of its input" if backward else "A stack of linear layers of one width" }}, in one dispatch, on matrix
// units of {{ u.side }} × {{ u.side }}: a workgroup carries {{ rows }} rows through all layers.
//
// Rows lie in workgroup memory as f16. Each of {{ subs }} subgroups makes {{ over * u.side }} columns of all rows, from weights that it
// stages for itself, {{ u.side }} inner elements at a time, as pack_weights.wgsl has laid them out. They are read eight at a time, as words.
{% if ahead %}
// Those of the next {{ ahead }} steps are on their way to registers meanwhile, across layers too.
{% endif %}
// Sums go through workgroup memory, since only there a lane can reach its numbers.
{% if scaled %}
//
// Each row is scaled by a power of two that brings its largest number to about 2^14, so that no f16 number overflows, and
// so is each column of weights; both are taken back from sums. A row that holds an infinity or a NaN becomes NaN.
{% endif %}
{% if split %}
// A number is split into hi, its upper 11 bits, and lo, the rest. The units cut off what a sum cannot hold instead of rounding it,
// so hi·hi is summed on its own,{% if ahead %} {{ fold * u.side }} inner elements at a time,{% endif %} and hi·lo + lo·hi.
{% endif %}
{{ unit.enable(u) }}
enable f16;

struct Params {
    groups: u32, // workgroups that have work
    rows: u32,
    layers: u32,
    zero: u32, // 0, unknown to the compiler: numbers that WGSL has no literal for are made with it
    x_offset: u32, // all offsets in vec4s
{% if bias %}
    b_offset: u32,
{% endif %}
{% if backward %}
    kept_offset: u32,
    y_offset: u32,
{% endif %}
}

{% include "shared/params.wgsl" %}
{% for name, access in bindings %}
{% set type = "vec4<f32>" if name == "factors" else "vec4<u32>" if name == "w" else "vec4<" ~ scalar ~ ">" %}
@group(0) @binding({{ loop.index }}) var<storage, {{ access }}> {{ name }}: array<{{ type }}>;
{% endfor %}

{% include "shared/group.wgsl" %}
{% include "shared/chain.wgsl" %}
{% if scaled %}
{% include "shared/halves.wgsl" %}
{% endif %}

// A layer's weights, in eights.
const LAYER: u32 = {{ blocks * step }}u;

{% for half in u.halves %}
{{ unit.array("rows_" ~ half, "f16", rows * at_row, u) }}
{% endfor %}
{{ unit.array("staged", "f16", subs * stages * region, u) }}
{{ unit.array("sums", "f32", subs * u.side * at_sum, u) }}
{% if scaled %}
// The largest magnitude of each row in each subgroup's columns.
var<workgroup> largest: array<u32, {{ rows * subs }}>;
{% endif %}

// What is done with a sum, {{ "the value that the layer before made being i1" if backward else "the bias being i1" }}.
fn finish(i0: vec4<f32>, i1: vec4<f32>) -> vec4<f32> {
{% for step in steps %}
    let t{{ loop.index0 }} = {{ step }};
{% endfor %}
    return {{ result }};
}

{# a lane's row of the workgroup's, and the place of its vec4 in a row #}
{% macro row(t, r) %}(row_0 + {{ t * u.side + r * at_once }}u){% endmacro %}
{% macro column(c) %}(column_0 + {{ c // each * beside * u.side // 4 + c % each }}u){% endmacro %}
{# where that is in an array of rows, those past the end being the last #}
{% macro place(t, r, c) %}min(first + {{ row(t, r) }}, last) * {{ nv }}u + {{ column(c) }}{% endmacro %}
{% macro store(name, at, value, t, r) %}
            if first + {{ row(t, r) }} <= last {
                {{ name }}[{{ at }}] = vec4<{{ scalar }}>({{ value }});
            }
{% endmacro %}
{# a lane's share of a step's weights, in a layer's from `at` on #}
{% macro fetch(declare, at, k) %}
{% for j in range(eights // u.lanes) %}
            {{ declare }}b{{ k % ahead }}_{{ j }} = w[{{ at }} + {{ k * step + j * u.lanes }}u + l];
{% endfor %}
{% endmacro %}
{# where a vec4 of a step's weights is staged: pack_weights.wgsl has ordered them so that lanes meet no bank twice #}
{% macro place_w(e) %}at_staged + ({{ e }}) / {{ M }}u * {{ u.side * at_column }}u + ({{ e }}) / {{ part }}u % {{ u.side }}u * {{ at_column }}u + ({{ e }}) % {{ M }}u / {{ u.side * part }}u * {{ part }}u + ({{ e }}) % {{ part }}u{% endmacro %}
{# stages eight weights, the `at`-th of the subgroup's #}
{% macro stage(at, value, offset) %}
            {
                let v = {{ value }};
                let at_first = {{ place_w("(" ~ at ~ ") * 2u") }} + {{ offset }}u;
                let at_second = {% if part == 2 %}at_first + 1u{% else %}{{ place_w("(" ~ at ~ ") * 2u + 1u") }} + {{ offset }}u{% endif %};
                {{ unit.put("staged", "at_first", "vec4<f16>(vec2<f16>(unpack2x16float(v.x)), vec2<f16>(unpack2x16float(v.y)))", u) }}
                {{ unit.put("staged", "at_second", "vec4<f16>(vec2<f16>(unpack2x16float(v.z)), vec2<f16>(unpack2x16float(v.w)))", u) }}
            }
{% endmacro %}
{# all sums of a step whose weights are staged #}
{% macro products(k, from) %}
{% for o in range(over) %}
{% for half in u.halves %}
            {{ unit.load("b_" ~ o ~ "_" ~ half, "B", "staged", "at_staged + " ~ (from + (o * halves + loop.index0) * u.side * at_column) ~ "u", at_column ~ "u", false, u) }}
{% endfor %}
{% endfor %}
{% for t in range(down) %}
{% for half in u.halves %}
            {{ unit.load("a" ~ t ~ "_" ~ half, "A", "rows_" ~ half, (t * u.side * at_row) ~ "u + " ~ k ~ " * " ~ u.side // 4 ~ "u", at_row ~ "u", true, u) }}
{% endfor %}
{% endfor %}
{% for left, right in [["lo", "hi"], ["hi", "lo"], ["hi", "hi"]] if split or left == right %}
{% for o in range(over) %}
{% for t in range(down) %}
            {{ unit.multiply_add(("sum" if not split else "part" if left == right else "rest") ~ t ~ "_" ~ o, "a" ~ t ~ "_" ~ left, "b_" ~ o ~ "_" ~ right, u) }}
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}

{% macro add_parts() %}
{% for t in range(down) %}
{% for o in range(over) %}
            {{ unit.fold("sum" ~ t ~ "_" ~ o, "part" ~ t ~ "_" ~ o, u) }}
{% endfor %}
{% endfor %}
{% endmacro %}

@compute @workgroup_size({{ subs * u.lanes }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) n: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = group_index(wg, n);
    // naga does not see that a return would be uniform
    for (var go = group < p.groups; go; go = false) {
    let first = group * {{ rows }}u;
    let last = p.rows - 1u;
    let sub = lane / {{ u.lanes }}u;
    let l = lane % {{ u.lanes }}u;
    let row_0 = l / {{ fours }}u;
    let column_0 = sub * {{ over * u.side // 4 }}u + l % {{ fours }}u;
    let at_sums = sub * {{ u.side * at_sum }}u;
    let at_staged = sub * {{ stages * region }}u;
    // the layer's weights of the subgroup's columns
    var at_w = sub * {{ eights }}u{{ " + (p.layers - 1u) * LAYER" if backward }};
{% for k in range(ahead) %}
{{ fetch("var ", "at_w", k) }}
{% endfor %}
{% for t in range(down) %}
{% for r in range(mine) %}
{% if scaled %}
    var up{{ t }}_{{ r }}: f32;
    var down{{ t }}_{{ r }}: f32;
{% endif %}
{% for c in range(columns) %}
{% set v = "v" ~ t ~ "_" ~ r ~ "_" ~ c %}
    var {{ v }} = vec4<f32>(x[p.x_offset + {{ place(t, r, c) }}]);
{% if backward %}
    {{ v }} = finish({{ v }}, vec4<f32>(y[p.y_offset + {{ place(t, r, c) }}]));
{{ store("dz", "(p.layers - 1u) * p.rows * " ~ nv ~ "u + " ~ place(t, r, c), v, t, r) }}
{% elif keep %}
{{ store("kept", place(t, r, c), v, t, r) }}
{% endif %}
{% endfor %}
{% endfor %}
{% endfor %}
    for (var i = 0u; i < p.layers; i++) {
        let layer = {{ "p.layers - 1u - i" if backward else "i" }};
{% if scaled %}
{% for t in range(down) %}
{% for r in range(mine) %}
        {
            var most = magnitude(v{{ t }}_{{ r }}_0);
{% for c in range(1, columns) %}
            most = max(most, magnitude(v{{ t }}_{{ r }}_{{ c }}));
{% endfor %}
{% for by in shuffles if by < fours and u.lanes > 1 %}
            most = max(most, subgroupShuffleXor(most, {{ by }}u));
{% endfor %}
            if l % {{ fours }}u == 0u {
                largest[{{ row(t, r) }} * {{ subs }}u + sub] = most;
            }
        }
{% endfor %}
{% endfor %}
{% endif %}
        // all have read the rows before
        workgroupBarrier();
{% for t in range(down) %}
{% for r in range(mine) %}
        {
            let at = {{ row(t, r) }} * {{ at_row }}u;
{% if scaled %}
            let at_largest = {{ row(t, r) }} * {{ subs }}u;
            var most = largest[at_largest];
{% for s in range(1, subs) %}
            most = max(most, largest[at_largest + {{ s }}u]);
{% endfor %}
            let scale = row_scale(most);
            // the exponent of what undoes it, biased twice: in two halves nothing between overflows
            let power = exponent(most) + 113u;
            up{{ t }}_{{ r }} = bitcast<f32>(select((power / 2u) << 23u, most | 0x00400000u, broken(most)));
            down{{ t }}_{{ r }} = bitcast<f32>((power - power / 2u) << 23u);
{% endif %}
{% for c in range(columns) %}
            {
                let v = {{ "scaled(v" ~ t ~ "_" ~ r ~ "_" ~ c ~ ", scale)" if scaled else "v" ~ t ~ "_" ~ r ~ "_" ~ c }};
{% if split %}
                let high = upper(v);
                {{ unit.put("rows_hi", "at + " ~ column(c), "vec4<f16>(high)", u) }}
                {{ unit.put("rows_lo", "at + " ~ column(c), "vec4<f16>(v - high)", u) }}
{% else %}
                {{ unit.put("rows_hi", "at + " ~ column(c), "vec4<f16>(v)", u) }}
{% endif %}
            }
{% endfor %}
        }
{% endfor %}
{% endfor %}
        workgroupBarrier();
{% for c in range(columns) %}
{% if scaled %}
        let f{{ c }} = factors[layer * {{ nv }}u + {{ column(c) }}];
{% endif %}
{% if backward %}
{% for t in range(down) %}
{% for r in range(mine) %}
        let e{{ t }}_{{ r }}_{{ c }} = vec4<f32>(kept[p.kept_offset + layer * p.rows * {{ nv }}u + {{ place(t, r, c) }}]);
{% endfor %}
{% endfor %}
{% else %}
        let e{{ c }} = {{ "vec4<f32>(b[p.b_offset + layer * " ~ nv ~ "u + " ~ column(c) ~ "])" if bias else "vec4<f32>(0.0)" }};
{% endif %}
{% endfor %}
{% for t in range(down) %}
{% for o in range(over) %}
        var sum{{ t }}_{{ o }} = {{ unit.zero(u) }};
{% if split %}
        var part{{ t }}_{{ o }} = {{ unit.zero(u) }};
        var rest{{ t }}_{{ o }} = {{ unit.zero(u) }};
{% endif %}
{% endfor %}
{% endfor %}
        // the last layer's end fetches its first weights again
        let at_next = select(at_w, at_w {{ "-" if backward else "+" }} LAYER, i + 1u < p.layers);
{% if ahead %}
{% for k in range(blocks) %}
        {
{% if stages == 1 and k > 0 %}
            {{ unit.meet(u) }}
{% endif %}
{% for j in range(eights // u.lanes) %}
{{ stage("l + " ~ j * u.lanes ~ "u", "b" ~ k % ahead ~ "_" ~ j, k % stages * region) }}
{% endfor %}
            {{ unit.meet(u) }}
{{ fetch("", "at_w" if k + ahead < blocks else "at_next", (k + ahead) % blocks) }}
{{ products(k ~ "u", k % stages * region) }}
{% if split and (k + 1) % fold == 0 and k + 1 < blocks %}
{{ add_parts() }}
{% for t in range(down) %}
{% for o in range(over) %}
            part{{ t }}_{{ o }} = {{ unit.zero(u) }};
{% endfor %}
{% endfor %}
{% endif %}
        }
{% endfor %}
{% else %}
        for (var k = 0u; k < {{ blocks }}u; k++) {
            {{ unit.meet(u) }}
            for (var e = l; e < {{ eights }}u; e += {{ u.lanes }}u) {
{{ stage("e", "w[at_w + k * " ~ step ~ "u + e]", 0) }}
            }
            {{ unit.meet(u) }}
{{ products("k", 0) }}
        }
{% endif %}
        at_w = at_next;
{% if split %}
{{ add_parts() }}
{% for t in range(down) %}
{% for o in range(over) %}
        {{ unit.fold("sum" ~ t ~ "_" ~ o, "rest" ~ t ~ "_" ~ o, u) }}
{% endfor %}
{% endfor %}
{% endif %}
{% for t in range(down) %}
{% for s in range(over // beside) %}
{% for o in range(beside) %}
        {{ unit.store("sum" ~ t ~ "_" ~ (s * beside + o), "sums", "at_sums + " ~ (o * u.side // 4) ~ "u", at_sum ~ "u", u) }}
{% endfor %}
        {{ unit.meet(u) }}
{% for r in range(mine) %}
{% for j in range(each) %}
        v{{ t }}_{{ r }}_{{ s * each + j }} = {{ unit.read("sums", "f32", "at_sums + (row_0 + " ~ r * at_once ~ "u) * " ~ at_sum ~ "u + l % " ~ fours ~ "u + " ~ j ~ "u", u) }};
{% endfor %}
{% endfor %}
        {{ unit.meet(u) }}
{% endfor %}
{% endfor %}
{% if scaled %}
{% for t in range(down) %}
{% for r in range(mine) %}
{% for c in range(columns) %}
        v{{ t }}_{{ r }}_{{ c }} *= up{{ t }}_{{ r }};
        v{{ t }}_{{ r }}_{{ c }} *= f{{ c }};
        v{{ t }}_{{ r }}_{{ c }} *= down{{ t }}_{{ r }};
{% endfor %}
{% endfor %}
{% endfor %}
{% endif %}
{% if backward %}
        if layer > 0u {
{% for t in range(down) %}
{% for r in range(mine) %}
{% for c in range(columns) %}
{% set v = "v" ~ t ~ "_" ~ r ~ "_" ~ c %}
            {{ v }} = finish({{ v }}, e{{ t }}_{{ r }}_{{ c }});
{{ store("dz", "(layer - 1u) * p.rows * " ~ nv ~ "u + " ~ place(t, r, c), v, t, r) }}
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% else %}
{% for t in range(down) %}
{% for r in range(mine) %}
{% for c in range(columns) %}
        v{{ t }}_{{ r }}_{{ c }} = finish(v{{ t }}_{{ r }}_{{ c }}, e{{ c }});
{% endfor %}
{% endfor %}
{% endfor %}
{% if keep %}
        if i + 1u < p.layers {
{% for t in range(down) %}
{% for r in range(mine) %}
{% for c in range(columns) %}
{{ store("kept", "(layer + 1u) * p.rows * " ~ nv ~ "u + " ~ place(t, r, c), "v" ~ t ~ "_" ~ r ~ "_" ~ c, t, r) }}
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% endif %}
{% endif %}
    }
{% for t in range(down) %}
{% for r in range(mine) %}
{% for c in range(columns) %}
{{ store("dx" if backward else "y", place(t, r, c), "v" ~ t ~ "_" ~ r ~ "_" ~ c, t, r) }}
{% endfor %}
{% endfor %}
{% endfor %}
    }
}
